//! Whether the kernel says that this process has more rights than who started it.

/// `AT_SECURE` of the auxiliary vector.
pub(crate) fn is_secure() -> bool {
    // SAFETY: `getauxval` takes a plain number, touches no memory of ours and may be called at any time
    // from any thread; for an entry that is not there it returns 0.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_plain_process_is_not_secure() {
        assert!(!super::is_secure());
    }
}
