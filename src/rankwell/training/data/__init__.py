"""What is learned from: prepared data, candidates, lists, teachers, noise reduction."""
