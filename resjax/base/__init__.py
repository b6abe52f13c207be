"""What all rooms stand on: paths, typed JSON, terminals, hardware, meshes, processes, records."""
