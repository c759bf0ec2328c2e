//! What is open here of other processes, by the address that C got. Each thread keeps what it opened in a part of its own, so
//! that opening and closing in one thread meets no other.

use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use umf_core::global::Global;
use umf_core::thread;
use umf_ipc::Mapping;

use crate::boundary::{Failure, Outcome};

const PARTS: usize = 64;
/// Addresses of which nothing is open are forgotten when there are more than this.
const REMEMBERED: usize = 1024;

/// Addresses are spread over their upper bits already; these multiply the rest in.
#[derive(Default)]
pub(super) struct ByAddress(u64);

impl Hasher for ByAddress {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(usize::from(byte));
        }
    }

    fn write_usize(&mut self, value: usize) {
        let product = u128::from(self.0 ^ value as u64) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product ^ (product >> 64)) as u64;
    }
}

/// One opening.
struct Open {
    mapping: Mapping<'static>,
    /// Whose importer it is from.
    of: usize,
}

type Part = HashMap<usize, Vec<Open>, BuildHasherDefault<ByAddress>>;

static OPENED: [Global<Part>; PARTS] =
    [const { Global::new(HashMap::with_hasher(BuildHasherDefault::new())) }; PARTS];

fn own_part() -> &'static Global<Part> {
    let number = thread::current().map_or(0, thread::ThreadIndex::get) as usize;
    &OPENED[number % PARTS]
}

/// Remembers a mapping under the address that C gets for it.
///
/// # Safety
/// The mapping's importer stays until [`close_all`] of `of`, or for ever.
pub(super) unsafe fn keep(address: usize, mapping: Mapping<'_>, of: usize) {
    // SAFETY: only the lifetime changes, to what the caller promises.
    let mapping = unsafe { core::mem::transmute::<Mapping<'_>, Mapping<'static>>(mapping) };
    own_part().lock().entry(address).or_default().push(Open { mapping, of });
}

fn take(part: &'static Global<Part>, address: usize) -> Option<Open> {
    let mut part = part.lock();
    let opened = part.get_mut(&address)?.pop();
    if opened.is_some() && part.len() > REMEMBERED {
        part.retain(|_, open| !open.is_empty());
    }
    opened
}

/// Closes one opening of that address, or of a block that holds it.
pub(super) fn close(address: usize) -> Outcome<()> {
    let own = own_part();
    if let Some(open) = take(own, address) {
        drop(open);
        return Ok(());
    }
    let elsewhere = OPENED.iter().find_map(|part| take(part, address)).or_else(|| {
        let inside = around(address)?.0;
        OPENED.iter().find_map(|part| take(part, inside))
    });
    drop(elsewhere.ok_or(Failure::argument(
        "nothing is open at that address: it was closed before, or never opened",
    ))?);
    Ok(())
}

/// What is known of an opening around an address: the address that C got, where its block begins, and its size.
pub(super) fn around(address: usize) -> Option<(usize, usize, usize)> {
    OPENED.iter().find_map(|part| {
        part.lock().iter().find_map(|(&got, open)| {
            let mapping = &open.last()?.mapping;
            let base = usize::try_from(mapping.address().value()).ok()?;
            (base..base + mapping.len()).contains(&address).then_some((got, base, mapping.len()))
        })
    })
}

/// Closes everything that was opened through the importer of `of`.
pub(crate) fn close_all(of: usize) {
    for part in &OPENED {
        let gone: Vec<Open> = {
            let mut part = part.lock();
            part.values_mut().flat_map(|open| open.extract_if(.., |open| open.of == of)).collect()
        };
        // Without the lock: closing may unmap.
        drop(gone);
    }
}
