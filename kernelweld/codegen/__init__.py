"""Code generation: row tasks to readable Triton source, to a cached file, to a launchable kernel."""
