//! GPU-device-aware unified memory framework: pools, by-value IPC handles, caches
