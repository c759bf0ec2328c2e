//! Times as people read them.

/// A span of nanoseconds in the unit that fits.
pub(super) fn span(nanoseconds: u64) -> String {
    let time = nanoseconds as f64;
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} us", time / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.1} s", time / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{:.0} min", time / 60e9),
        _ => format!("{:.1} h", time / 3_600e9),
    }
}

/// How long ago something was that another process timed: it may have lied, and clocks of two processors may differ a little.
pub(super) fn ago(now: u64, then: u64) -> String {
    match now.checked_sub(then) {
        Some(_) if then == 0 => "at an unknown time".to_owned(),
        Some(since) => format!("{} ago", span(since)),
        None if then - now < 1_000_000_000 => "just now".to_owned(),
        None => "in the future, it says".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let texts = [
            (0, "0 ns"),
            (3_200_000, "3.2 ms"),
            (2_000_000_000, "2.0 s"),
            (90_000_000_000, "2 min"),
            (7_200_000_000_000, "2.0 h"),
        ];
        for (nanoseconds, text) in texts {
            assert_eq!(span(nanoseconds), text);
        }
        assert!(span(u64::MAX).ends_with(" h"));
        assert_eq!(ago(5_000, 2_000), "3.0 us ago");
        assert_eq!(ago(5_000, 0), "at an unknown time");
        assert_eq!(ago(5_000, 6_000), "just now");
        assert_eq!(ago(5_000, u64::MAX), "in the future, it says");
    }
}
