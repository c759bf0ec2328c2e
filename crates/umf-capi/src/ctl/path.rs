//! Paths, node by node.

/// The first node, and the rest.
pub(super) fn first(path: &str) -> (&str, &str) {
    path.split_once('.').unwrap_or((path, ""))
}

/// The wildcard.
pub(super) const ANY: &str = "{}";
