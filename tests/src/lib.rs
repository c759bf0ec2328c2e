//! Multi-process and fault tests of umf
