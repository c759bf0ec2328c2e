//! Slab pool of umf: size classes, per-thread caches, out-of-band metadata
