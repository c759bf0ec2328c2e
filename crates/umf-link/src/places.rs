//! [`Places`]: which bytes of a registered range a transfer concerns.

use crate::{Error, Result};

/// A piece of a registered range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset in the range, in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub length: usize,
}

/// Which bytes of a registered range a transfer concerns: those from an offset on, as many as the local
/// memory has, or a list of pieces whose lengths add up to that.
///
/// Made from a `usize`, a [`Span`] or a slice of those. Adjacent pieces count as one.
#[derive(Clone, Copy, Debug)]
pub struct Places<'p>(Form<'p>);

#[derive(Clone, Copy, Debug)]
enum Form<'p> {
    From(usize),
    One(Span),
    Many(&'p [Span]),
}

impl From<usize> for Places<'_> {
    fn from(offset: usize) -> Self {
        Self(Form::From(offset))
    }
}

impl From<Span> for Places<'_> {
    fn from(span: Span) -> Self {
        Self(Form::One(span))
    }
}

impl<'p> From<&'p [Span]> for Places<'p> {
    fn from(spans: &'p [Span]) -> Self {
        Self(Form::Many(spans))
    }
}

impl<'p, const COUNT: usize> From<&'p [Span; COUNT]> for Places<'p> {
    fn from(spans: &'p [Span; COUNT]) -> Self {
        Self(Form::Many(spans))
    }
}

impl<'p> From<&'p Vec<Span>> for Places<'p> {
    fn from(spans: &'p Vec<Span>) -> Self {
        Self(Form::Many(spans))
    }
}

/// Pieces in a range, none adjacent to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spans {
    One(Span),
    Many(Vec<Span>),
}

impl Spans {
    pub(crate) fn as_slice(&self) -> &[Span] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl Places<'_> {
    /// Returns the pieces, checked against a range of `size` bytes and `local` bytes of memory.
    pub(crate) fn within(self, size: usize, local: usize) -> Result<Spans> {
        let inside = |span: Span| {
            let fits = span.offset.checked_add(span.length).is_some_and(|end| end <= size);
            if fits {
                Ok(span)
            } else {
                Err(Error::OutOfBounds { offset: span.offset, length: span.length, size })
            }
        };
        let spans = match self.0 {
            Form::From(offset) => return Ok(Spans::One(inside(Span { offset, length: local })?)),
            Form::One(span) => Spans::One(inside(span)?),
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
                    [] => Spans::One(Span { offset: 0, length: 0 }),
                    [one] => Spans::One(one),
                    _ => Spans::Many(merged),
                }
            }
        };
        let remote = spans.as_slice().iter().fold(0_usize, |sum, span| sum.saturating_add(span.length));
        if remote == local { Ok(spans) } else { Err(Error::Lengths { remote, local }) }
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
        let merged = Places::from(&pieces).within(100, 26).unwrap();
        assert_eq!(merged.as_slice(), [span(0, 15), span(20, 10), span(3, 1)]);
        assert_eq!(Places::from(&pieces[..2]).within(15, 15).unwrap(), Spans::One(span(0, 15)));
        assert_eq!(Places::from(7).within(10, 3).unwrap(), Spans::One(span(7, 3)));
    }

    #[test]
    fn pieces_outside_are_refused() {
        let outside = |places: Places<'_>, local| places.within(100, local).unwrap_err();
        assert_eq!(outside(90.into(), 11), Error::OutOfBounds { offset: 90, length: 11, size: 100 });
        for piece in [span(usize::MAX, 1), span(1, usize::MAX), span(101, 0)] {
            assert!(
                matches!(outside((&[span(0, 1), piece]).into(), 2), Error::OutOfBounds { .. }),
                "{piece:?}"
            );
        }
        assert_eq!(outside(span(0, 5).into(), 6), Error::Lengths { remote: 5, local: 6 });
    }

    proptest! {
        #[test]
        fn merging_changes_no_byte(pieces in prop::collection::vec((0..64_usize, 0..20_usize), 0..20)) {
            let pieces: Vec<Span> = pieces.into_iter().map(|(offset, length)| span(offset, length)).collect();
            let bytes = |spans: &[Span]| -> Vec<usize> {
                spans.iter().flat_map(|span| span.offset..span.offset + span.length).collect()
            };
            let all = bytes(&pieces);
            let merged = Places::from(&pieces).within(84, all.len()).unwrap();
            prop_assert_eq!(bytes(merged.as_slice()), all);
            let touching = |pair: &[Span]| pair[0].offset + pair[0].length == pair[1].offset;
            prop_assert!(!merged.as_slice().windows(2).any(touching));
        }
    }
}
