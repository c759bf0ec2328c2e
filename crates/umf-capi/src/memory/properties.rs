//! `umf/experimental/memory_properties.h`.
//!
//! A handle is not a pointer but a number: a slot of a table and its generation. A handle for freed
//! memory is an error, and is never dereferenced.

use core::ffi::c_void;

use umf_core::{Address, Region};
use umf_runtime::tracker;
use umf_sync::Lock;

use super::{openings, owners};
use crate::boundary::{Code, Failure, Handle, Out, Outcome, call};
use crate::pool::Pool;
use crate::pools::preloaded;
use crate::provider::part_around;

/// `umf_memory_properties_handle_t`.
type Number = *mut c_void;

const PROVIDER: i32 = 0;
const POOL: i32 = 1;
const BASE: i32 = 10;
const SIZE: i32 = 11;
const BUFFER: i32 = 12;
pub(crate) const POINTER_TYPE: i32 = 20;
pub(crate) const CONTEXT: i32 = 21;
pub(crate) const DEVICE: i32 = 22;
const INVALID: i32 = -1;

const TYPE_UNKNOWN: i32 = 0;
const TYPE_HOST: i32 = 1;

/// The memory that a handle identifies.
#[derive(Clone, Copy, PartialEq)]
enum Subject {
    /// A region, or a part of it with this offset and size.
    Region { region: Region, start: usize, size: usize },
    /// Memory of another process, opened here.
    Opened { base: usize, size: usize },
    /// A block of the heap of `libumf_proxy.so`.
    Heap { base: usize, size: usize },
}

struct Place {
    subject: Subject,
    use_number: u32,
}

static PLACES: Lock<Vec<Place>> = Lock::new(Vec::new());
/// Table size from which slots of freed memory are reused.
const MANY: usize = 1024;

impl Subject {
    fn at(address: Address) -> Option<Self> {
        if let Some((_, found)) = owners::find(address) {
            let (start, size) = part_around(&found.region, address)?;
            return Some(Self::Region { region: found.region, start, size });
        }
        let opened = openings::find_containing(usize::try_from(address.value()).ok()?);
        let opened = opened.map(|(_, base, size)| Self::Opened { base, size });
        opened.or_else(|| preloaded::block_at(address).map(|(base, size)| Self::Heap { base, size }))
    }

    fn is_there(self) -> bool {
        match self {
            // Region ids are never reused.
            Self::Region { region, start, size } => {
                let is_live = tracker::find(region.base()).is_some_and(|found| found.region == region);
                let part = region.base().checked_add(start as u64);
                is_live && part.and_then(|part| part_around(&region, part)) == Some((start, size))
            }
            Self::Opened { base, size } => {
                openings::find_containing(base).is_some_and(|(_, found, len)| (found, len) == (base, size))
            }
            Self::Heap { base, size } => {
                let address = Address::new(base);
                address.and_then(preloaded::block_at).is_some_and(|found| found == (base, size))
            }
        }
    }

    fn pool<'a>(self) -> Option<&'a Pool> {
        match self {
            Self::Region { region, .. } => {
                let (pool, found) = owners::find(region.base())?;
                // A pool over a block of this one may own the inner region.
                (found.region == region).then(|| Handle::from_ptr(pool).get().ok()).flatten()
            }
            Self::Opened { .. } => None,
            Self::Heap { base, .. } => preloaded::find(Address::new(base)?)?.known(),
        }
    }
}

fn number(place: usize, use_number: u32) -> Number {
    let place = u32::try_from(place + 1).unwrap_or(0);
    core::ptr::without_provenance_mut(((u64::from(use_number) << 32) | u64::from(place)) as usize)
}

/// Returns a number for the subject: its existing one, or a new one.
fn enter(subject: Subject) -> Number {
    let known = |places: &[Place]| {
        let place = places.iter().position(|place| place.subject == subject)?;
        Some(number(place, places[place].use_number))
    };
    let subjects: Vec<Subject> = {
        let places = PLACES.lock();
        if let Some(number) = known(&places) {
            return number;
        }
        let all = if places.len() >= MANY { places.as_slice() } else { &[] };
        all.iter().map(|place| place.subject).collect()
    };
    // Without the lock: openings have a lock of their own, and a fork takes both in its own order.
    let gone = subjects.iter().position(|subject| !subject.is_there());
    let mut places = PLACES.lock();
    if let Some(number) = known(&places) {
        return number;
    }
    if let Some(free) = gone.filter(|&gone| places[gone].subject == subjects[gone]) {
        let use_number = places[free].use_number.wrapping_add(1);
        places[free] = Place { subject, use_number };
        return number(free, use_number);
    }
    places.push(Place { subject, use_number: 1 });
    number(places.len() - 1, 1)
}

fn subject(number: Number) -> Outcome<Subject> {
    let unknown = Failure::argument("that is no handle of properties, or its memory was freed");
    let bits = number.addr() as u64;
    let place = usize::try_from(bits & 0xffff_ffff).ok().and_then(|place| place.checked_sub(1));
    let found = {
        let places = PLACES.lock();
        let place = place.and_then(|place| places.get(place));
        place.filter(|place| u64::from(place.use_number) == bits >> 32).map(|place| place.subject)
    };
    found.filter(|subject| subject.is_there()).ok_or(unknown)
}

#[unsafe(no_mangle)]
extern "C" fn umfGetMemoryPropertiesHandle(memory: *const c_void, handle: Out<Number>) -> Code {
    call("umfGetMemoryPropertiesHandle", || {
        let handle = handle.check()?;
        let unknown = Failure::argument("the memory is of no pool that keeps track of it");
        let subject = Subject::at(Address::from_ptr(memory.cast::<u8>())).ok_or(unknown)?;
        handle.set(enter(subject))
    })
}

#[unsafe(no_mangle)]
extern "C" fn umfGetMemoryPropertySize(handle: Number, property: i32, size: Out<usize>) -> Code {
    call("umfGetMemoryPropertySize", || {
        let size = size.check()?;
        match property {
            PROVIDER | POOL | BASE | SIZE | BUFFER => size.set(8),
            POINTER_TYPE => size.set(size_of::<i32>()),
            INVALID => Err(Failure::argument("UMF_MEMORY_PROPERTY_INVALID is no property")),
            property => asked_size(subject(handle)?, property, size),
        }
    })
}

const UNKNOWN: Failure = Failure::unsupported("this memory does not have that property");

fn asked_size(subject: Subject, property: i32, size: Out<usize>) -> Outcome<()> {
    let provider = subject.pool().ok_or(UNKNOWN)?.provider()?;
    let get = provider.functions.ext_get_allocation_properties_size.ok_or(UNKNOWN)?;
    // SAFETY: a function of the table, with the place for its result that C passed.
    provider.check(unsafe { get(provider.state, property, size.to_ptr()) })
}

#[unsafe(no_mangle)]
extern "C" fn umfGetMemoryProperty(handle: Number, property: i32, value: *mut c_void, room: usize) -> Code {
    call("umfGetMemoryProperty", || {
        if value.is_null() || room == 0 {
            return Err(Failure::argument("a property needs a place to go to"));
        }
        let subject = subject(handle)?;
        let (base, size, id) = match subject {
            Subject::Region { region, start, size } => {
                let is_whole = size == region.size();
                let of_provider = subject.pool().and_then(|pool| pool.provider().ok()).filter(|_| is_whole);
                let size = of_provider.map_or(size, |provider| provider.requested_size(&region));
                (region.base().value() as usize + start, size, region.id().get())
            }
            Subject::Opened { base, size } | Subject::Heap { base, size } => (base, size, 0),
        };
        let pool = subject.pool();
        let of_pool = |what: fn(&Pool) -> Outcome<usize>| pool.ok_or(UNKNOWN).and_then(what);
        match property {
            PROVIDER => give(value, room, &of_pool(|pool| Ok(core::ptr::from_ref(pool.provider()?).addr()))?),
            POOL => give(value, room, &of_pool(|pool| Ok(core::ptr::from_ref(pool).addr()))?),
            BASE => give(value, room, &base),
            SIZE => give(value, room, &size),
            BUFFER => give(value, room, &id),
            POINTER_TYPE => give(value, room, &pointer_type(subject, base)?),
            INVALID => Err(Failure::argument("UMF_MEMORY_PROPERTY_INVALID is no property")),
            property => asked(subject, property, base, value, room),
        }
    })
}

fn give<T: Copy>(value: *mut c_void, room: usize, what: &T) -> Outcome<()> {
    if room < size_of::<T>() {
        return Err(Failure::argument("the place for a property is smaller than the property"));
    }
    // SAFETY: C guarantees as many bytes as it passed in `room`.
    unsafe { value.cast::<T>().write_unaligned(*what) };
    Ok(())
}

fn asked(subject: Subject, property: i32, base: usize, value: *mut c_void, room: usize) -> Outcome<()> {
    let provider = subject.pool().ok_or(UNKNOWN)?.provider()?;
    let get = provider.functions.ext_get_allocation_properties.ok_or(UNKNOWN)?;
    let mut size = 0;
    asked_size(subject, property, Out::to(&mut size))?;
    if room < size {
        return Err(Failure::argument("the place for a property is smaller than the property"));
    }
    let base = core::ptr::with_exposed_provenance(base);
    // SAFETY: a function of the table, with a place that is large enough.
    provider.check(unsafe { get(provider.state, base, property, value) })
}

fn pointer_type(subject: Subject, base: usize) -> Outcome<i32> {
    let Some(pool) = subject.pool() else { return Ok(TYPE_UNKNOWN) };
    let provider = pool.provider()?;
    if provider.functions.ext_get_allocation_properties.is_none() {
        let is_host = provider.core().memory_kind().is_host_accessible();
        return Ok(if is_host { TYPE_HOST } else { TYPE_UNKNOWN });
    }
    let mut answer = TYPE_UNKNOWN;
    let place = (&raw mut answer).cast();
    match asked(subject, POINTER_TYPE, base, place, size_of::<i32>()) {
        Ok(()) => Ok(answer),
        Err(failure) if failure.code() == crate::boundary::NOT_SUPPORTED => Ok(TYPE_UNKNOWN),
        Err(failure) => Err(failure),
    }
}
