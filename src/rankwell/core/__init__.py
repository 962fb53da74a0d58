"""What every layer stands on: errors, files, arrays on disk, progress, manifests, registries."""
