//! Commands, and what executing them does.

use std::ffi::c_void;

use crate::{Event, Result, Span, Timeout, now};

/// A box in two memories: bytes of a row, rows of a slice, slices.
#[derive(Clone, Copy, Debug)]
pub struct Boxes {
    /// Bytes of a row.
    pub row: usize,
    /// Rows of a slice.
    pub rows: usize,
    /// Slices of the box.
    pub slices: usize,
    /// From the beginning of each span, in bytes: where the box begins, one row to the next, one slice to the next.
    pub to: (usize, usize, usize),
    /// As `to`, where it is read.
    pub from: (usize, usize, usize),
}

/// What a command does.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Work {
    /// Only waits and signals.
    Nothing,
    Copy {
        to: Span,
        from: Span,
    },
    CopyBoxes {
        to: Span,
        from: Span,
        boxes: Boxes,
    },
    Fill {
        to: Span,
        pattern: Vec<u8>,
    },
    Reset(Event),
    /// Writes the time, in nanoseconds.
    Time(Span),
    /// Writes start and end twice, by the clock of the device and by that of the context, for each event at its offset.
    Times {
        events: Vec<Event>,
        to: Span,
        offsets: Vec<usize>,
    },
    Call(Callback),
}

/// A function of the application.
#[derive(Clone, Copy, Debug)]
pub struct Callback {
    /// What is called.
    pub function: unsafe extern "C" fn(*mut c_void),
    /// With what.
    pub data: *mut c_void,
}

// SAFETY: the application gave function and data to be called from another thread.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

/// Something to do, once these events are signalled, and the event to signal then.
#[derive(Clone, Debug)]
pub struct Command {
    /// What it waits for.
    pub wait: Vec<Event>,
    /// What it does then.
    pub work: Work,
    /// What it signals in the end.
    pub signal: Option<Event>,
}

impl Command {
    /// Waits, works, signals. `check` says whether to go on waiting, `pace` makes it last.
    pub fn execute(&self, check: impl Fn() -> Result<()>, pace: impl Fn() -> Result<()>) -> Result<()> {
        for event in &self.wait {
            event.wait(Timeout::Never, &check)?;
        }
        check()?;
        if let Some(event) = &self.signal {
            event.begin();
        }
        self.work.execute();
        pace()?;
        if let Some(event) = &self.signal {
            event.finish();
        }
        Ok(())
    }
}

impl Work {
    fn execute(&self) {
        match self {
            Self::Nothing => {}
            Self::Copy { to, from } => to.copy(0, from, 0, to.size()),
            Self::CopyBoxes { to, from, boxes } => boxes.copy(to, from),
            Self::Fill { to, pattern } => to.fill(pattern),
            Self::Reset(event) => event.reset(),
            Self::Time(to) => to.write(0, &now().to_ne_bytes()),
            Self::Times { events, to, offsets } => {
                for (event, offset) in events.iter().zip(offsets) {
                    let times = event.times();
                    for (place, value) in [times.start, times.end, times.start, times.end].iter().enumerate()
                    {
                        to.write(offset + place * size_of::<u64>(), &value.to_ne_bytes());
                    }
                }
            }
            Self::Call(callback) => {
                // SAFETY: the application's function, with the data that it asked for.
                unsafe { (callback.function)(callback.data) }
            }
        }
    }
}

impl Boxes {
    fn copy(&self, to: &Span, from: &Span) {
        for slice in 0..self.slices {
            for row in 0..self.rows {
                let place = |(start, pitch, slice_pitch): (usize, usize, usize)| {
                    start + slice * slice_pitch + row * pitch
                };
                to.copy(place(self.to), from, place(self.from), self.row);
            }
        }
    }

    /// How many bytes from the beginning of a span the box reaches; nothing if that is more than there are addresses.
    pub fn reach(&self, (start, pitch, slice_pitch): (usize, usize, usize)) -> Option<usize> {
        let slices = self.slices.checked_sub(1)?.checked_mul(slice_pitch)?;
        let rows = self.rows.checked_sub(1)?.checked_mul(pitch)?;
        start.checked_add(slices)?.checked_add(rows)?.checked_add(self.row)
    }
}
