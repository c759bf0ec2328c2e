//! [`Pool`]: stream-ordered memory. A pool is one memfd, of which pages are charged to the device
//! once an allocation uses them, and addresses for all of it. Processes that import the memfd see
//! the memory of all its allocations.
//!
//! An allocation can be used in the order of its stream, so it has its address at once. A freed
//! range is pending until its stream reaches the free; the same stream can reuse it before.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use cuda_sys::*;
use soft_device::{Backing, Budget, Charge, Command, Event, HandleTable, Mapping, lock};

use crate::memory::{Access, Allocation, AllocationKind, DEVICE_PAGE, find};
use crate::pool_space::Space;
use crate::state::{CudaResult, DriverState};
use crate::stream::StreamObject;

/// The prefix of the names of memfds of pools; a [`PoolKind`] follows.
const POOL_NAME: &str = "soft-pool-";
/// Sizes of allocations are multiples of it.
const ALIGNMENT: usize = 512;
/// The limit of a pool's size, which is one of addresses.
const MAX_POOL: usize = 1 << 40;

/// The memory of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// Memory of the device with this number on the machine.
    Device(u32),
    Host,
    Managed,
}

impl PoolKind {
    fn name(self) -> String {
        match self {
            Self::Device(number) => format!("{POOL_NAME}{number}"),
            Self::Host => format!("{POOL_NAME}host"),
            Self::Managed => format!("{POOL_NAME}managed"),
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        match name.strip_prefix(POOL_NAME)? {
            "host" => Some(Self::Host),
            number => Some(Self::Device(number.parse().ok()?)),
        }
    }

    fn device(self) -> Option<u32> {
        match self {
            Self::Device(number) => Some(number),
            Self::Host | Self::Managed => None,
        }
    }
}

/// The place of a pool's memory, by which the default and the current pool are found.
pub(crate) type PoolPlace = (CUmemAllocationType, CUmemLocationType, i32);

/// A freed range that its stream has not reached.
struct Pending {
    stream: usize,
    /// Signalled when the stream reaches the free. Several if the range was to be used in a stream
    /// that failed, after frees of others.
    points: Vec<Arc<Event>>,
    offset: usize,
    size: usize,
}

impl Pending {
    /// Returns whether its stream has reached the free, or executes nothing any more.
    fn is_reached(&self) -> bool {
        self.points.iter().all(|point| point.is_over())
    }
}

/// The id of no stream.
const NO_STREAM: usize = 0;

/// A pool of memory.
pub(crate) struct Pool {
    pub(crate) handle: usize,
    pub(crate) kind: PoolKind,
    /// The handle types in which it can be exported.
    pub(crate) exportable: u32,
    /// Whether another process created it: then it only opens pointers of that process.
    is_imported: bool,
    backing: Arc<Backing>,
    window: Mapping,
    /// The device's memory. `None` for memory of the host.
    memory: Option<Arc<Budget>>,
    state: Mutex<PoolState>,
}

struct PoolState {
    space: Space,
    /// The pages with memory, by number, and their charges.
    pages: BTreeMap<usize, Option<Charge>>,
    pending: Vec<Pending>,
    /// Bytes of allocations, without pending ones.
    live: u64,
    used_high: u64,
    reserved_high: u64,
    release_threshold: u64,
    /// The three switches of reuse, from `CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES` on.
    reuse: [u32; 3],
    access: Vec<(u32, Access)>,
}

/// The switches in [`PoolState::reuse`].
const OPPORTUNISTIC: usize = 1;
const INTERNAL_DEPENDENCIES: usize = 2;

impl PoolState {
    fn reserved(&self) -> u64 {
        (self.pages.len() * DEVICE_PAGE) as u64
    }

    fn used(&self) -> u64 {
        let pending = self.pending.iter().filter(|range| !range.is_reached());
        self.live + pending.map(|range| range.size as u64).sum::<u64>()
    }

    /// Frees the pending ranges that their streams have reached.
    fn collect(&mut self) {
        let space = &mut self.space;
        self.pending.retain(|range| {
            let is_pending = !range.is_reached();
            if !is_pending {
                space.give(range.offset, range.size);
            }
            is_pending
        });
    }

    /// Takes `size` bytes of one pending range of a stream. Returns their offset.
    fn take_pending(&mut self, size: usize, stream: usize) -> Option<usize> {
        let fits = |range: &&mut Pending| range.size >= size && range.stream == stream;
        let range = self.pending.iter_mut().filter(fits).min_by_key(|range| range.size)?;
        let offset = range.offset;
        range.offset += size;
        range.size -= size;
        self.pending.retain(|range| range.size > 0);
        Some(offset)
    }

    /// Returns the free ranges, joined with the pending ones that are `usable`.
    fn joined(&self, usable: impl Fn(&Pending) -> bool) -> Space {
        let mut space = self.space.clone();
        for range in self.pending.iter().filter(|range| usable(range)) {
            space.give(range.offset, range.size);
        }
        space
    }

    /// Takes a range of free and pending bytes. Returns the pending parts.
    fn cut(&mut self, offset: usize, size: usize) -> Vec<Pending> {
        self.space.cut(offset, size);
        let end = offset + size;
        let mut parts = Vec::new();
        for range in std::mem::take(&mut self.pending) {
            let part = |start: usize, end: usize| Pending {
                stream: range.stream,
                points: range.points.clone(),
                offset: start,
                size: end.saturating_sub(start),
            };
            let (first, last) = (range.offset, range.offset + range.size);
            let (before, after) = (part(first, last.min(offset)), part(first.max(end), last));
            let within = part(first.max(offset), last.min(end));
            self.pending.extend([before, after].into_iter().filter(|part| part.size > 0));
            parts.extend(Some(within).filter(|part| part.size > 0));
        }
        parts
    }

    /// Returns free pages, the last ones first, while more than `keep` bytes are reserved.
    fn excess(&self, keep: u64) -> Vec<usize> {
        let excess = self.reserved().saturating_sub(keep).div_ceil(DEVICE_PAGE as u64);
        let free = |page: &&usize| self.space.is_free(**page * DEVICE_PAGE, DEVICE_PAGE);
        self.pages.keys().rev().filter(free).take(excess as usize).copied().collect()
    }
}

impl Pool {
    /// Returns the first address and the size.
    pub(crate) fn addresses(&self) -> (usize, usize) {
        (self.window.address(), self.window.size())
    }

    /// Takes `size` bytes for a stream. Returns their offset, and the events of frees that other
    /// streams have to reach before the bytes can be used.
    fn take(&self, size: usize, stream: usize) -> CudaResult<(usize, Vec<Arc<Event>>)> {
        let mut state = lock(&self.state);
        // The stream's own order makes a range usable that was freed in it.
        if let Some(offset) = state.take_pending(size, stream) {
            self.count(&mut state, size);
            return Ok((offset, Vec::new()));
        }
        if state.reuse[OPPORTUNISTIC] != 0 {
            state.collect();
        }
        if let Some(offset) = state.space.take(size) {
            if self.reserve(&mut state, offset, size) {
                self.count(&mut state, size);
                return Ok((offset, Vec::new()));
            }
            state.space.give(offset, size);
        }
        let others = state.reuse[INTERNAL_DEPENDENCIES] != 0;
        for with_others in [false, true].into_iter().filter(|with_others| others || !with_others) {
            let usable = |range: &Pending| with_others || range.stream == stream;
            let Some(offset) = state.joined(usable).take(size) else { continue };
            if self.reserve(&mut state, offset, size) {
                let mut points = state.cut(offset, size);
                points.retain(|range| range.stream != stream);
                self.count(&mut state, size);
                return Ok((offset, points.into_iter().flat_map(|range| range.points).collect()));
            }
        }
        Err(CUDA_ERROR_OUT_OF_MEMORY.into())
    }

    fn count(&self, state: &mut PoolState, size: usize) {
        state.live += size as u64;
        state.used_high = state.used_high.max(state.used());
    }

    /// Charges the pages of a range to the device, if necessary in place of free pages of the pool.
    /// Returns false if the device has too little memory.
    fn reserve(&self, state: &mut PoolState, offset: usize, size: usize) -> bool {
        if self.charge(state, offset, size) {
            return true;
        }
        let pages = offset / DEVICE_PAGE..=(offset + size - 1) / DEVICE_PAGE;
        let free = state.excess(0).into_iter().filter(|page| !pages.contains(page)).collect();
        self.release(state, free);
        self.charge(state, offset, size)
    }

    /// Charges the pages of a range to the device. Returns false if it has too little memory.
    fn charge(&self, state: &mut PoolState, offset: usize, size: usize) -> bool {
        let pages = offset / DEVICE_PAGE..=(offset + size - 1) / DEVICE_PAGE;
        let mut charged = Vec::new();
        for page in pages.filter(|page| !state.pages.contains_key(page)) {
            let charge = self.memory.as_ref().map(|memory| memory.take(DEVICE_PAGE as u64));
            match charge {
                Some(None) => return false,
                Some(charge) => charged.push((page, charge)),
                None => charged.push((page, None)),
            }
        }
        state.pages.extend(charged);
        state.reserved_high = state.reserved_high.max(state.reserved());
        true
    }

    /// Gives a range back: at once, or when the points of a stream are reached.
    fn give(&self, offset: usize, size: usize, after: Option<(usize, Vec<Arc<Event>>)>) {
        if self.is_imported {
            return;
        }
        let mut state = lock(&self.state);
        state.live -= size as u64;
        match after {
            Some((stream, points)) => state.pending.push(Pending { stream, points, offset, size }),
            None => state.space.give(offset, size),
        }
    }

    /// Gives free pages back to the device while more than `keep` bytes are reserved.
    pub(crate) fn trim(&self, keep: u64) {
        let mut state = lock(&self.state);
        state.collect();
        let pages = state.excess(keep);
        self.release(&mut state, pages);
    }

    fn release(&self, state: &mut PoolState, pages: Vec<usize>) {
        for page in pages {
            // If the system keeps the pages, the device has them anyway.
            let _ = self.backing.discard(page * DEVICE_PAGE, DEVICE_PAGE);
            state.pages.remove(&page);
        }
    }

    /// Gives free pages back, down to the release threshold.
    fn trim_to_threshold(&self) {
        let threshold = lock(&self.state).release_threshold;
        if threshold != u64::MAX {
            self.trim(threshold);
        }
    }

    /// Returns a number of bytes.
    pub(crate) fn bytes(&self, attribute: CUmemPool_attribute) -> Option<u64> {
        let mut state = lock(&self.state);
        state.collect();
        Some(match attribute {
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => state.release_threshold,
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => state.reserved(),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => state.reserved_high,
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => state.used(),
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => state.used_high,
            _ => return None,
        })
    }

    /// Sets a number of bytes. The high ones can only be reset, to the current ones.
    pub(crate) fn set_bytes(&self, attribute: CUmemPool_attribute, value: u64) -> CudaResult {
        let mut state = lock(&self.state);
        match attribute {
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => state.release_threshold = value,
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if value == 0 => state.reserved_high = state.reserved(),
            CU_MEMPOOL_ATTR_USED_MEM_HIGH if value == 0 => state.used_high = state.used(),
            _ => return Err(CUDA_ERROR_INVALID_VALUE.into()),
        }
        Ok(())
    }

    /// Calls `with` with a switch of reuse. `None` for any other attribute.
    pub(crate) fn switch<R>(
        &self,
        attribute: CUmemPool_attribute,
        with: impl FnOnce(&mut u32) -> R,
    ) -> Option<R> {
        let first = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES.0;
        let place = attribute.0.checked_sub(first)? as usize;
        lock(&self.state).reuse.get_mut(place).map(with)
    }

    /// Returns the access of a device, or of the host.
    pub(crate) fn access(&self, device: Option<u32>) -> Access {
        let Some(number) = device else {
            return if self.kind.device().is_none() { Access::ReadWrite } else { Access::Nothing };
        };
        if self.kind == PoolKind::Device(number) || self.kind == PoolKind::Managed {
            return Access::ReadWrite;
        }
        let state = lock(&self.state);
        state.access.iter().find(|(known, _)| *known == number).map_or(Access::Nothing, |(_, access)| *access)
    }

    /// Sets the access of a device.
    pub(crate) fn set_access(&self, device: u32, access: Access) {
        let mut state = lock(&self.state);
        state.access.retain(|(known, _)| *known != device);
        state.access.push((device, access));
    }

    /// Returns an fd for other processes.
    pub(crate) fn export(&self) -> CudaResult<OwnedFd> {
        Ok(self.backing.export()?)
    }

    /// Returns whether `size` bytes at `offset` can be an allocation of the pool.
    fn has(&self, offset: u64, size: u64) -> bool {
        let size_of_pages = size.checked_next_multiple_of(ALIGNMENT as u64);
        let end = size_of_pages.and_then(|size| offset.checked_add(size));
        let is_within = end.is_some_and(|end| end <= self.backing.size() as u64);
        size > 0 && is_within && offset.is_multiple_of(ALIGNMENT as u64)
    }
}

/// The pools of a process.
#[derive(Default)]
pub(crate) struct PoolTable {
    table: HandleTable<Arc<Pool>>,
    /// All pools with memory, also destroyed ones.
    alive: Mutex<Vec<Weak<Pool>>>,
    /// Default pools, and current ones where they differ.
    defaults: Mutex<BTreeMap<PoolPlace, usize>>,
    current: Mutex<BTreeMap<PoolPlace, usize>>,
}

impl PoolTable {
    /// Returns the number of pools that are not destroyed.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns a pool by its handle.
    pub(crate) fn get(&self, pool: CUmemoryPool) -> CudaResult<Arc<Pool>> {
        let found = self.table.get(pool.0.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        Ok(Arc::clone(&found))
    }

    fn alive(&self) -> Vec<Arc<Pool>> {
        let mut alive = lock(&self.alive);
        alive.retain(|pool| pool.strong_count() > 0);
        alive.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns whether the addresses of a pool overlap a range.
    pub(crate) fn overlaps(&self, start: usize, end: usize) -> bool {
        self.alive().iter().any(|pool| {
            let (first, size) = pool.addresses();
            start < first + size && first < end
        })
    }

    /// Destroys a pool, whose memory is freed with its last allocation. Default pools stay.
    pub(crate) fn destroy(&self, pool: CUmemoryPool) -> CudaResult {
        let handle = self.get(pool)?.handle;
        if lock(&self.defaults).values().any(|known| *known == handle) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        lock(&self.current).retain(|_, known| *known != handle);
        self.table.remove(handle).map(drop).map_err(|_| CUDA_ERROR_INVALID_VALUE.into())
    }

    /// Makes a pool the current one of its place.
    pub(crate) fn set_current(&self, place: PoolPlace, pool: CUmemoryPool, kind: PoolKind) -> CudaResult {
        let pool = self.get(pool)?;
        if pool.kind != kind || pool.is_imported {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        lock(&self.current).insert(place, pool.handle);
        Ok(())
    }
}

impl DriverState {
    /// Returns what a pool at a place consists of.
    pub(crate) fn pool_kind(&self, (memory, location, id): PoolPlace) -> CudaResult<PoolKind> {
        if !self.settings.has("pools") {
            return Err(CUDA_ERROR_NOT_SUPPORTED.into());
        }
        match (memory, location) {
            (CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE) => {
                Ok(PoolKind::Device(self.device(id)?.number))
            }
            (
                CU_MEM_ALLOCATION_TYPE_PINNED,
                CU_MEM_LOCATION_TYPE_HOST
                | CU_MEM_LOCATION_TYPE_HOST_NUMA
                | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
            ) => Ok(PoolKind::Host),
            (CU_MEM_ALLOCATION_TYPE_MANAGED, _) if !self.settings.has("managed") => {
                Err(CUDA_ERROR_NOT_SUPPORTED.into())
            }
            (CU_MEM_ALLOCATION_TYPE_MANAGED, _) => Ok(PoolKind::Managed),
            _ => Err(CUDA_ERROR_INVALID_VALUE.into()),
        }
    }

    /// Creates a pool of at most `size` bytes; 0 is the size of a device.
    pub(crate) fn create_pool(&self, kind: PoolKind, size: usize, exportable: u32) -> CudaResult<Arc<Pool>> {
        let limit = usize::try_from(self.core.settings.memory).unwrap_or(MAX_POOL).min(MAX_POOL);
        let size = if size == 0 { limit } else { size.min(limit) };
        let size = size.max(DEVICE_PAGE).next_multiple_of(DEVICE_PAGE);
        let backing = Backing::with_name(&kind.name(), size, vec![self.core.charge_fd()?])?;
        let window = Mapping::reserve(size, DEVICE_PAGE)?;
        if kind.device().is_none() {
            window.map_file(backing.file().ok_or(CUDA_ERROR_UNKNOWN)?)?;
        }
        let device = self.devices.iter().find(|device| Some(device.number) == kind.device());
        let memory = device.map(|device| Arc::clone(&device.memory));
        Ok(self.add_pool(kind, exportable, false, (backing, window, memory)))
    }

    /// Imports a pool from an fd of another process.
    pub(crate) fn import_pool(&self, fd: i32) -> CudaResult<Arc<Pool>> {
        let file = Backing::duplicate_fd(fd)?;
        let name = Backing::name_of(file.as_fd()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let kind = PoolKind::from_name(&name).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (backing, _) = Backing::from_fd(file.as_fd())?;
        let window = Mapping::reserve(backing.size(), DEVICE_PAGE)?;
        if kind.device().is_none() {
            window.map_file(file.as_fd())?;
        }
        Ok(self.add_pool(kind, 0, true, (backing, window, None)))
    }

    fn add_pool(
        &self,
        kind: PoolKind,
        exportable: u32,
        is_imported: bool,
        (backing, window, memory): (Backing, Mapping, Option<Arc<Budget>>),
    ) -> Arc<Pool> {
        let handle = HandleTable::<Arc<Pool>>::next();
        let state = PoolState {
            space: Space::new(backing.size()),
            pages: BTreeMap::new(),
            pending: Vec::new(),
            live: 0,
            used_high: 0,
            reserved_high: 0,
            release_threshold: 0,
            reuse: [1; 3],
            access: Vec::new(),
        };
        let (backing, state) = (Arc::new(backing), Mutex::new(state));
        let pool = Arc::new(Pool { handle, kind, exportable, is_imported, backing, window, memory, state });
        lock(&self.pools.alive).push(Arc::downgrade(&pool));
        self.pools.table.insert_as(handle, Arc::clone(&pool));
        pool
    }

    /// Returns the default pool of a place, created by its first use.
    pub(crate) fn default_pool(&self, place: PoolPlace) -> CudaResult<Arc<Pool>> {
        let kind = self.pool_kind(place)?;
        let mut defaults = lock(&self.pools.defaults);
        if let Some(known) = defaults.get(&place) {
            return Ok(Arc::clone(&*self.pools.table.get(*known)?));
        }
        let pool = self.create_pool(kind, 0, 0)?;
        defaults.insert(place, pool.handle);
        Ok(pool)
    }

    /// Returns the current pool of a place: the default one unless the application set another.
    pub(crate) fn current_pool(&self, place: PoolPlace) -> CudaResult<Arc<Pool>> {
        self.pool_kind(place)?;
        let current = lock(&self.pools.current).get(&place).copied();
        match current.and_then(|handle| self.pools.table.get(handle).ok()) {
            Some(pool) => Ok(Arc::clone(&pool)),
            None => self.default_pool(place),
        }
    }

    /// Allocates memory of a pool in the order of a stream.
    pub(crate) fn allocate_pooled(
        &self,
        pool: &Arc<Pool>,
        stream: &StreamObject,
        size: usize,
    ) -> CudaResult<usize> {
        if size == 0 || pool.is_imported {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let rounded = size.checked_next_multiple_of(ALIGNMENT).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let (offset, after) = pool.take(rounded, stream.id)?;
        if !after.is_empty() {
            let command = Command { after: after.clone(), ..Command::default() };
            if let Err(error) = self.submit_to(stream, command) {
                pool.give(offset, rounded, Some((NO_STREAM, after)));
                return Err(error);
            }
        }
        Ok(self.map_pooled(pool, offset, size))
    }

    fn map_pooled(&self, pool: &Arc<Pool>, offset: usize, size: usize) -> usize {
        let start = pool.window.address() + offset;
        let mut owner = Allocation::new(AllocationKind::Pooled, 0, pool.kind.device());
        owner.pool = Some(Arc::clone(pool));
        self.core.addresses.map(start, size, (Arc::clone(&pool.backing), offset), owner);
        start
    }

    /// Frees memory of a pool: at once, or in the order of a stream.
    pub(crate) fn free_pooled(&self, address: u64, stream: Option<&StreamObject>) -> CudaResult {
        let start = usize::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let range = self.core.addresses.remove(start, |range| range.owner.kind == AllocationKind::Pooled);
        let range = range.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let pool = range.owner.pool.as_ref().ok_or(CUDA_ERROR_UNKNOWN)?;
        // If the stream has failed, nothing in it executes any more.
        let after = stream.and_then(|stream| Some((stream.id, vec![self.mark(stream).ok()?])));
        pool.give(range.offset, range.size.next_multiple_of(ALIGNMENT), after);
        Ok(())
    }

    /// Releases the free memory of pools beyond their thresholds. Called by every synchronization.
    pub(crate) fn trim_pools(&self) {
        for pool in self.pools.alive() {
            pool.trim_to_threshold();
        }
    }

    /// Returns the file, offset and size of an allocation, for a process that has imported its pool.
    pub(crate) fn export_pointer(&self, address: CUdeviceptr) -> CudaResult<((u64, u64), u64, u64)> {
        let range = find(self, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let pool = range.owner.pool.as_ref().filter(|pool| pool.exportable != 0 && !pool.is_imported);
        let file = pool.and_then(|pool| pool.backing.file()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok((Backing::file_identity(file)?, range.offset as u64, range.size as u64))
    }

    /// Opens an allocation of an imported pool.
    pub(crate) fn import_pointer(
        &self,
        pool: &Arc<Pool>,
        file: (u64, u64),
        offset: u64,
        size: u64,
    ) -> CudaResult<usize> {
        if !pool.backing.is_backed_by(file) || !pool.has(offset, size) {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let (offset, size) = (offset as usize, size as usize);
        let start = pool.window.address() + offset;
        let _opening = lock(&self.core.opening);
        let addresses = &self.core.addresses;
        if addresses.find(start).is_some() || !addresses.within(start, start + size).is_empty() {
            return Err(CUDA_ERROR_ALREADY_MAPPED.into());
        }
        Ok(self.map_pooled(pool, offset, size))
    }
}
