"""The foundation of every layer: errors, files, arrays on disk, locks, jobs, progress, manifests, registries."""
