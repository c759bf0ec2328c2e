//! One-sided transfers of a [`super::Mesh`]: registered ranges and their keys.
