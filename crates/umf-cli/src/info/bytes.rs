//! Sizes as people read them.

/// A number of bytes in the largest binary unit that keeps it above one, with one decimal where it matters.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = ((bytes.ilog2() / 10) as usize).min(UNITS.len());
    let scale = 1_u64 << (10 * unit);
    let (whole, rest) = (bytes / scale, bytes % scale);
    let tenths = (u128::from(rest) * 10 / u128::from(scale)) as u64;
    let name = UNITS[unit - 1];
    if tenths == 0 || whole >= 100 { format!("{whole} {name}") } else { format!("{whole}.{tenths} {name}") }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn picks_the_unit() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(2 << 20), "2 MiB");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(u64::MAX), "15.9 EiB");
    }
}
