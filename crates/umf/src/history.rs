//! The latest events of a pool: as text and, with the feature `json`, as JSON. The key `history`
//! enables it.
//!
//! ```
//! # fn main() -> umf::Result<()> {
//! let pool = umf::Pool::builder().history(1000).build()?;
//! drop(pool.allocate(100)?);
//! print!("{}", pool.history()?);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "json")]
use serde::Serialize;
#[doc(inline)]
pub use umf_core::history::{Event, EventKind, PoolHistory};

#[cfg(feature = "json")]
/// The version of the JSON format.
const FORMAT: u32 = 1;

#[cfg(feature = "json")]
#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    pool: &'a str,
    read_at_ns: u64,
    forgotten: u64,
    events: Vec<Line>,
}

#[cfg(feature = "json")]
#[derive(Serialize)]
struct Line {
    at_ns: u64,
    thread: u32,
    kind: &'static str,
    address: u64,
    size: u64,
    block_size: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
}

#[cfg(feature = "json")]
fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the history as a JSON document.
///
/// It has `format`, `pool`, `read_at_ns`, `forgotten` and `events`. An event has `at_ns`, `thread`,
/// `kind` (`allocate`, `free`, `allocate-refused`, `free-refused`, `trim`, `written-after-free`),
/// `address`, `size`, `block_size`, and the `reason` of an error. Both times are nanoseconds since
/// the creation of the pool. [`Event`] explains the fields.
///
/// # Examples
/// ```
/// let pool = umf::Pool::builder().history(1000).build()?;
/// drop(pool.allocate(100)?);
/// let json = umf::history::to_json(&pool.history()?);
/// assert!(json.contains(r#""allocate""#));
/// # Ok::<(), umf::Error>(())
/// ```
#[cfg(feature = "json")]
#[must_use]
pub fn to_json(history: &PoolHistory) -> String {
    let line = |event: &Event| Line {
        at_ns: nanoseconds(event.at),
        thread: event.thread,
        kind: event.kind.as_str(),
        address: event.address.to_bits(),
        size: event.size,
        block_size: event.block_size,
        reason: event.reason,
    };
    let document = Document {
        format: FORMAT,
        pool: &history.pool,
        read_at_ns: nanoseconds(history.read_at),
        forgotten: history.forgotten,
        events: history.events.iter().map(line).collect(),
    };
    // Serialising numbers and strings cannot fail.
    serde_json::to_string(&document).unwrap_or_default()
}

#[cfg(all(test, feature = "json"))]
mod tests {
    use super::*;
    use std::time::Duration;
    use umf_core::Address;
    use umf_core::history::EventKind;

    #[test]
    fn document_has_all_fields_of_the_history() {
        let event = Event {
            at: Duration::from_micros(5),
            thread: 7,
            kind: EventKind::FreeRefused,
            address: Address::from_bits(4096),
            size: 1,
            block_size: 8,
            reason: "freed twice",
        };
        let (events, read_at) = (vec![event], Duration::from_secs(1));
        let history = PoolHistory { pool: "\"p\"".to_owned(), read_at, events, forgotten: 3 };
        assert_eq!(
            to_json(&history),
            r#"{"format":1,"pool":"\"p\"","read_at_ns":1000000000,"forgotten":3,"events":[{"at_ns":5000,"thread":7,"#
                .to_owned()
                + r#""kind":"free-refused","address":4096,"size":1,"block_size":8,"reason":"freed twice"}]}"#
        );
    }
}
