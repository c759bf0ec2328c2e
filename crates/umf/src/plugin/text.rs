//! Texts of plugins in errors.
//!
//! [`umf_core::Error`] holds no heap memory, and what a plugin says is nothing that was known when this was
//! built. So what is said is kept for ever, each text once, up to a bound.

use std::collections::BTreeSet;
use std::sync::Mutex;

const TEXTS: usize = 512;
const LONGEST: usize = 200;
const TRIES: usize = 1000;

/// `text`, or its beginning, for ever; `fallback` if too many different texts were kept already.
pub(super) fn lasting(text: &str, fallback: &'static str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let text = text.trim();
    let end = (0..=LONGEST.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    let text = &text[..end.unwrap_or(0)];
    // Waited for with a bound: a forked child may find it taken for ever.
    let taken = (0..TRIES).find_map(|_| {
        let taken = KEPT.try_lock().ok();
        if taken.is_none() {
            std::thread::yield_now();
        }
        taken
    });
    let Some(mut kept) = taken else { return fallback };
    if let Some(known) = kept.get(text) {
        return known;
    }
    if kept.len() >= TEXTS {
        return fallback;
    }
    let lasting: &'static str = Box::leak(text.to_owned().into_boxed_str());
    kept.insert(lasting);
    lasting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = lasting(&"ä".repeat(150), "");
        assert_eq!(text.chars().count(), 100);
        assert_eq!(lasting(" same \n", ""), lasting("same", ""));
    }
}
