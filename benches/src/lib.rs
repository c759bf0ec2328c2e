//! Benches of umf, side by side with peers
