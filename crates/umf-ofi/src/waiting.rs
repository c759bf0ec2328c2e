//! What queues and counters wait with: the endpoints that are bound to them, threads that sleep in
//! a call, and the descriptor of `FI_WAIT_FD`.

use core::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libfabric_sys::*;
use rustix::event::{EventfdFlags, epoll, eventfd};
use umf_link::mesh::Waker;
use umf_os::CloseOnFork;

use crate::counter::CounterObject;
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::event_queue::EventQueueObject;
use crate::queue::QueueObject;
use crate::serial::Serial;

/// How long a thread polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// The longest sleep. Of several endpoints a thread sleeps on one.
const SLEEP: Duration = Duration::from_millis(25);
const SLEEP_OF_SEVERAL: Duration = Duration::from_micros(200);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics between two changes that belong together.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptor of an object with `FI_WAIT_FD`: an epoll set with an eventfd, which new entries
/// make readable, and with the descriptors of endpoints.
#[derive(Debug)]
pub(crate) struct Descriptor {
    set: CloseOnFork,
    news: CloseOnFork,
    /// Whether the next entry makes it readable.
    is_armed: AtomicBool,
}

impl Descriptor {
    /// Makes the descriptor for a kind of wait object, if that has one. Returns `-FI_ENOSYS` for
    /// kinds that are not offered.
    pub(crate) fn new(kind: fi_wait_obj) -> Result<Option<Self>, c_int> {
        match kind {
            FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_YIELD => return Ok(None),
            FI_WAIT_FD => {}
            _ => return Err(-FI_ENOSYS),
        }
        let make = || {
            let set = CloseOnFork::make(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
            let news = CloseOnFork::make(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
            epoll::add(&set, &news, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            // The first entry makes it readable.
            Ok(Some(Self { set, news, is_armed: AtomicBool::new(true) }))
        };
        make().map_err(|errno: rustix::io::Errno| -errno.raw_os_error())
    }

    fn add(&self, fd: BorrowedFd<'_>) -> Result<(), c_int> {
        epoll::add(&self.set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|errno| errno.raw_os_error())
    }

    fn remove(&self, fd: BorrowedFd<'_>) {
        // A descriptor that could not be added is not in the set.
        let _ = epoll::delete(&self.set, fd);
    }

    /// Makes the descriptor readable, unless an entry did since it was armed. Called after an entry
    /// was added.
    pub(crate) fn announce(&self) {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            // It can only fail if the eventfd is readable already.
            let _ = rustix::io::write(&self.news, &1_u64.to_ne_bytes());
        }
    }

    /// Lets the next entry make the descriptor readable. The caller looks for entries afterwards.
    pub(crate) fn arm(&self) {
        let _ = rustix::io::read(&self.news, &mut [0; 8]);
        self.is_armed.store(true, Ordering::SeqCst);
    }
}

/// Answers `FI_GETWAIT` and `FI_GETWAITOBJ`.
///
/// # Safety
/// `argument` is that of the command.
pub(crate) unsafe fn control(
    descriptor: Option<&Descriptor>,
    kind: fi_wait_obj,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    match (command, descriptor) {
        // SAFETY: by this function's contract.
        (FI_GETWAIT, Some(descriptor)) => unsafe {
            argument.cast::<c_int>().write(descriptor.set.as_fd().as_raw_fd());
        },
        // SAFETY: by this function's contract.
        (FI_GETWAITOBJ, _) => unsafe { argument.cast::<fi_wait_obj>().write(kind) },
        _ => return -FI_ENOSYS,
    }
    FI_SUCCESS
}

/// Arms the descriptors of objects: `fi_trywait`.
///
/// # Safety
/// `objects` has `count` open objects.
pub(crate) unsafe extern "C" fn try_wait(
    _fabric: *mut fid_fabric,
    objects: *mut *mut fid,
    count: c_int,
) -> c_int {
    let mut result = FI_SUCCESS;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: by this function's contract. Each object is of its class.
        let may_wait = unsafe {
            let object = *objects.add(at);
            match (*object).fclass {
                FI_CLASS_CQ => QueueObject::part(object.cast()).may_wait(),
                FI_CLASS_CNTR => CounterObject::part(object.cast()).may_wait(),
                FI_CLASS_EQ => EventQueueObject::part(object.cast()).may_wait(),
                _ => return -FI_EINVAL,
            }
        };
        if !may_wait {
            result = -FI_EAGAIN;
        }
    }
    result
}

/// The endpoints that are bound to a queue or a counter, and what waits for them.
#[derive(Debug)]
pub(crate) struct BoundEndpoints {
    kind: fi_wait_obj,
    endpoints: Serial<Vec<Arc<Endpoint>>>,
    /// Threads that sleep, and what wakes them. Beside the endpoints, whose lock a thread has that
    /// adds entries.
    sleeping: AtomicUsize,
    wakers: Mutex<Vec<(usize, Waker)>>,
    descriptor: Option<Descriptor>,
}

impl BoundEndpoints {
    /// Returns none, for an object of a domain that waits with a kind of object.
    pub(crate) fn new(kind: fi_wait_obj, domain: &Domain) -> Result<Self, c_int> {
        Ok(Self {
            kind,
            endpoints: domain.serial(Vec::new()),
            sleeping: AtomicUsize::new(0),
            wakers: Mutex::default(),
            descriptor: Descriptor::new(kind)?,
        })
    }

    pub(crate) fn can_wait(&self) -> bool {
        self.kind != FI_WAIT_NONE
    }

    /// Adds an endpoint, unless it is bound already. Returns a positive error number.
    pub(crate) fn add(&self, endpoint: &Arc<Endpoint>) -> Result<(), c_int> {
        let mut endpoints = self.endpoints.lock();
        if endpoints.iter().any(|bound| Arc::ptr_eq(bound, endpoint)) {
            return Ok(());
        }
        if let Some(descriptor) = &self.descriptor {
            endpoint.with_event_fd(|fd| descriptor.add(fd))?;
        }
        endpoints.push(Arc::clone(endpoint));
        lock(&self.wakers).push((Arc::as_ptr(endpoint).addr(), endpoint.waker().clone()));
        Ok(())
    }

    pub(crate) fn remove(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|bound| !Arc::ptr_eq(bound, endpoint));
        lock(&self.wakers).retain(|(address, _)| *address != Arc::as_ptr(endpoint).addr());
        if let Some(descriptor) = &self.descriptor {
            let _ = endpoint.with_event_fd(|fd| {
                descriptor.remove(fd);
                Ok(())
            });
        }
    }

    /// Makes progress with all.
    pub(crate) fn progress(&self) {
        // An endpoint that is closed by another thread meanwhile is a misuse that the interface
        // excludes, so that the lock may be held.
        for endpoint in &*self.endpoints.lock() {
            endpoint.progress();
        }
    }

    /// Attempts until there is a result, or until `timeout` milliseconds have passed if that is not
    /// negative. `has_news` returns whether an attempt would have a result without progress.
    pub(crate) fn wait<T>(
        &self,
        timeout: c_int,
        mut attempt: impl FnMut() -> Option<T>,
        has_news: impl Fn() -> bool,
    ) -> Option<T> {
        let start = Instant::now();
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        loop {
            if let Some(result) = attempt() {
                return Some(result);
            }
            let passed = start.elapsed();
            let left = limit.map(|limit| limit.saturating_sub(passed));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            if passed > SPIN {
                self.sleep(left.unwrap_or(SLEEP), &has_news);
            }
        }
    }

    /// Sleeps until there may be something, for at most `most`. `has_news` returns whether there is
    /// something already.
    fn sleep(&self, most: Duration, has_news: impl FnOnce() -> bool) {
        let (most, sleeper) = {
            // The lock is held while the endpoint is used, which is removed before it is closed.
            let endpoints = self.endpoints.lock();
            let most = most.min(if endpoints.len() == 1 { SLEEP } else { SLEEP_OF_SEVERAL });
            (most, endpoints.first().map(|endpoint| endpoint.progress_or_sleeper()))
        };
        match sleeper {
            Some(Some(sleeper)) => {
                self.sleeping.fetch_add(1, Ordering::SeqCst);
                if !has_news() {
                    sleeper.sleep(most);
                }
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
            }
            // There was something to do.
            Some(None) => {}
            None => std::thread::sleep(most),
        }
    }

    /// Ends all waits.
    pub(crate) fn wake(&self) {
        for (_, waker) in &*lock(&self.wakers) {
            waker.wake();
        }
        if let Some(descriptor) = &self.descriptor {
            descriptor.announce();
        }
    }

    /// Ends waits after there is something new. A thread that goes to sleep looks for it after it
    /// has counted itself.
    pub(crate) fn announce(&self) {
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            self.wake();
        } else if let Some(descriptor) = &self.descriptor {
            descriptor.announce();
        }
    }

    /// Arms the descriptor. Returns whether a thread may wait for it: there is nothing new, as
    /// `has_news` says, and no endpoint had anything to do.
    pub(crate) fn arm(&self, has_news: impl FnOnce() -> bool) -> bool {
        let Some(descriptor) = &self.descriptor else { return !has_news() };
        descriptor.arm();
        // All of them, since each is waited for.
        let is_any = self.endpoints.lock().iter().fold(false, |any, endpoint| endpoint.arm() | any);
        !is_any && !has_news()
    }

    /// As [`control`].
    ///
    /// # Safety
    /// As [`control`].
    pub(crate) unsafe fn control(&self, command: c_int, argument: *mut c_void) -> c_int {
        // SAFETY: by this function's contract.
        unsafe { control(self.descriptor.as_ref(), self.kind, command, argument) }
    }
}
