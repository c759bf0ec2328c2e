//! Pages of a device: a file, and the mapping through which the device's threads reach it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Charge, Error, Mapping, Result, sys};

/// Where pages come from: what [`Backing::opened`] tells of an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Made by this driver as memory of a device.
    Device,
    /// Made by this driver as memory that the host may touch too.
    Host,
    /// A memfd of somebody else.
    Foreign,
    DmaBuf,
}

const DEVICE_NAME: &str = "ze-soft-device";
const HOST_NAME: &str = "ze-soft-host";

/// Pages that stay as long as this value.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Absent in what was opened: it cannot be exported again, and costs no fd.
    file: Option<OwnedFd>,
    work: Mapping,
    _charges: Vec<Charge>,
}

impl Backing {
    /// New pages, all zero.
    pub(crate) fn new(size: usize, origin: Origin, charges: Vec<Charge>) -> Result<Self> {
        let name = if origin == Origin::Device { DEVICE_NAME } else { HOST_NAME };
        let file = sys::sealed_memfd(name, size as u64).map_err(Error::of("memfd_create"))?;
        let work = Mapping::of(file.as_fd(), size)?;
        Ok(Self { file: Some(file), work, _charges: charges })
    }

    /// The pages behind an fd from somewhere else. The fd itself is not kept.
    pub(crate) fn opened(file: BorrowedFd<'_>, number: i32) -> Result<(Self, Origin)> {
        let (kind, size) = sys::kind_and_size(file).map_err(Error::of("fstatfs"))?;
        let origin = match kind {
            // A file that could shrink would make a fault of a copy.
            sys::Kind::Other(why) => return Err(Error::NotMemory { fd: number, why }),
            sys::Kind::DmaBuf => Origin::DmaBuf,
            sys::Kind::Sealed => match sys::memfd_name(file).as_deref() {
                Some(DEVICE_NAME) => Origin::Device,
                Some(HOST_NAME) => Origin::Host,
                _ => Origin::Foreign,
            },
        };
        let size = usize::try_from(size).unwrap_or(0);
        if size == 0 {
            return Err(Error::NotMemory { fd: number, why: "it is empty" });
        }
        let work = Mapping::of(file, size)?;
        Ok((Self { file: None, work, _charges: Vec::new() }, origin))
    }

    /// What is the same for all fds of one file: device and inode.
    pub(crate) fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64)> {
        let status = rustix::fs::fstat(file).map_err(Error::of("fstat"))?;
        Ok((status.st_dev, status.st_ino))
    }

    pub(crate) fn size(&self) -> usize {
        self.work.size()
    }

    /// Where the device's threads see the pages.
    pub(crate) fn work(&self) -> *mut u8 {
        self.work.start()
    }

    /// The file, of pages that were made here.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A new fd of the file, for somebody else.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let file =
            self.file().ok_or(Error::NotMemory { fd: -1, why: "what was opened is not exported again" })?;
        sys::duplicate(file).map_err(Error::of("fcntl"))
    }

    /// Another fd of an fd that somebody else has, by its number.
    pub(crate) fn fd_by_number(number: i32) -> Result<OwnedFd> {
        sys::duplicate_number(number)
            .map_err(|_| Error::NotMemory { fd: number, why: "there is no such fd in this process" })
    }
}
