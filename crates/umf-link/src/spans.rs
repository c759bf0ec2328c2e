//! [`Spans`]: the bytes of a registered range that a one-sided transfer reads or writes.

use crate::{Error, Result};

/// A piece of a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset in the range, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub length: usize,
}

/// The bytes of a registered range that a transfer reads or writes.
///
/// Made from a `usize`, a [`Span`] or a slice of spans. A `usize` is an offset; the length is that
/// of the local memory. The lengths of spans must add up to that length. Adjacent spans are merged.
#[derive(Clone, Copy, Debug)]
pub struct Spans<'s>(Form<'s>);

#[derive(Clone, Copy, Debug)]
enum Form<'s> {
    From(usize),
    One(Span),
    Many(&'s [Span]),
}

impl From<usize> for Spans<'_> {
    fn from(offset: usize) -> Self {
        Self(Form::From(offset))
    }
}

impl From<Span> for Spans<'_> {
    fn from(span: Span) -> Self {
        Self(Form::One(span))
    }
}

impl<'s> From<&'s [Span]> for Spans<'s> {
    fn from(spans: &'s [Span]) -> Self {
        Self(Form::Many(spans))
    }
}

impl<'s, const COUNT: usize> From<&'s [Span; COUNT]> for Spans<'s> {
    fn from(spans: &'s [Span; COUNT]) -> Self {
        Self(Form::Many(spans))
    }
}

impl<'s> From<&'s Vec<Span>> for Spans<'s> {
    fn from(spans: &'s Vec<Span>) -> Self {
        Self(Form::Many(spans))
    }
}

/// Spans that lie in a range. Adjacent ones are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckedSpans {
    One(Span),
    Many(Vec<Span>),
}

impl CheckedSpans {
    pub(crate) fn as_slice(&self) -> &[Span] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl Spans<'_> {
    /// Returns the spans, checked against a range of `size` bytes and `local` bytes of memory.
    pub(crate) fn within(self, size: usize, local: usize) -> Result<CheckedSpans> {
        let inside = |span: Span| {
            let fits = span.offset.checked_add(span.length).is_some_and(|end| end <= size);
            if fits {
                Ok(span)
            } else {
                Err(Error::OutOfBounds { offset: span.offset, length: span.length, size })
            }
        };
        let spans = match self.0 {
            Form::From(offset) => return Ok(CheckedSpans::One(inside(Span { offset, length: local })?)),
            Form::One(span) => CheckedSpans::One(inside(span)?),
            Form::Many(spans) => {
                let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
                for span in spans {
                    let span = inside(*span)?;
                    match merged.last_mut() {
                        Some(last) if last.offset + last.length == span.offset => last.length += span.length,
                        _ if span.length == 0 => {}
                        _ => merged.push(span),
                    }
                }
                match merged[..] {
                    [] => CheckedSpans::One(Span { offset: 0, length: 0 }),
                    [one] => CheckedSpans::One(one),
                    _ => CheckedSpans::Many(merged),
                }
            }
        };
        let remote = spans.as_slice().iter().fold(0_usize, |sum, span| sum.saturating_add(span.length));
        if remote == local { Ok(spans) } else { Err(Error::LengthMismatch { remote, local }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(offset: usize, length: usize) -> Span {
        Span { offset, length }
    }

    #[test]
    fn adjacent_pieces_are_merged() {
        let pieces = [span(0, 10), span(10, 5), span(15, 0), span(20, 5), span(25, 5), span(3, 1)];
        let merged = Spans::from(&pieces).within(100, 26).unwrap();
        assert_eq!(merged.as_slice(), [span(0, 15), span(20, 10), span(3, 1)]);
        assert_eq!(Spans::from(&pieces[..2]).within(15, 15).unwrap(), CheckedSpans::One(span(0, 15)));
        assert_eq!(Spans::from(7).within(10, 3).unwrap(), CheckedSpans::One(span(7, 3)));
    }

    #[test]
    fn pieces_outside_are_refused() {
        let outside = |places: Spans<'_>, local| places.within(100, local).unwrap_err();
        assert_eq!(outside(90.into(), 11), Error::OutOfBounds { offset: 90, length: 11, size: 100 });
        for piece in [span(usize::MAX, 1), span(1, usize::MAX), span(101, 0)] {
            assert!(
                matches!(outside((&[span(0, 1), piece]).into(), 2), Error::OutOfBounds { .. }),
                "{piece:?}"
            );
        }
        assert_eq!(outside(span(0, 5).into(), 6), Error::LengthMismatch { remote: 5, local: 6 });
    }

    proptest! {
        #[test]
        fn merging_keeps_all_bytes(pieces in prop::collection::vec((0..64_usize, 0..20_usize), 0..20)) {
            let pieces: Vec<Span> = pieces.into_iter().map(|(offset, length)| span(offset, length)).collect();
            let bytes = |spans: &[Span]| -> Vec<usize> {
                spans.iter().flat_map(|span| span.offset..span.offset + span.length).collect()
            };
            let all = bytes(&pieces);
            let merged = Spans::from(&pieces).within(84, all.len()).unwrap();
            prop_assert_eq!(bytes(merged.as_slice()), all);
            let touching = |pair: &[Span]| pair[0].offset + pair[0].length == pair[1].offset;
            prop_assert!(!merged.as_slice().windows(2).any(touching));
        }
    }
}
