//! Pages of a device: a file, and the mapping through which the device's threads reach it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{Charge, Error, Mapping, Result, sys};

/// Where pages come from: what [`Backing::opened`] tells of an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Memory of the device with this number, made here or by such a driver in another process.
    Device(u32),
    /// Memory that the host may touch too, made so.
    Host,
    /// A memfd of somebody else.
    Foreign,
    /// A dma-buf.
    DmaBuf,
}

/// With the device's number behind it.
const DEVICE_NAME: &str = "soft-device-";
const HOST_NAME: &str = "soft-host";

/// Pages that stay as long as this value.
#[derive(Debug)]
pub struct Backing {
    /// Absent in what was opened: it cannot be exported again, and costs no fd.
    file: Option<OwnedFd>,
    work: Mapping,
    _charges: Vec<Charge>,
}

impl Backing {
    /// New pages, all zero.
    pub fn new(size: usize, origin: Origin, charges: Vec<Charge>) -> Result<Self> {
        let name = match origin {
            Origin::Device(number) => format!("{DEVICE_NAME}{number}"),
            _ => HOST_NAME.to_owned(),
        };
        let file = sys::sealed_memfd(&name, size as u64).map_err(Error::of("memfd_create"))?;
        let work = Mapping::of(file.as_fd(), size)?;
        Ok(Self { file: Some(file), work, _charges: charges })
    }

    /// The pages behind an fd from somewhere else. The fd itself is not kept.
    pub fn opened(file: BorrowedFd<'_>, number: i32) -> Result<(Self, Origin)> {
        let (kind, size) = sys::kind_and_size(file).map_err(Error::of("fstatfs"))?;
        let origin = match kind {
            // A file that could shrink would make a fault of a copy.
            sys::Kind::Other(why) => return Err(Error::NotMemory { fd: number, why }),
            sys::Kind::DmaBuf => Origin::DmaBuf,
            sys::Kind::Sealed => match sys::memfd_name(file).as_deref() {
                Some(HOST_NAME) => Origin::Host,
                Some(name) => match name.strip_prefix(DEVICE_NAME).and_then(|number| number.parse().ok()) {
                    Some(number) => Origin::Device(number),
                    None => Origin::Foreign,
                },
                None => Origin::Foreign,
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
    pub fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64)> {
        let status = rustix::fs::fstat(file).map_err(Error::of("fstat"))?;
        Ok((status.st_dev, status.st_ino))
    }

    /// Bytes of the pages.
    pub fn size(&self) -> usize {
        self.work.size()
    }

    /// Where the device's threads see the pages.
    pub fn work(&self) -> *mut u8 {
        self.work.start()
    }

    /// The file, of pages that were made here.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A new fd of the file, for somebody else.
    pub fn export(&self) -> Result<OwnedFd> {
        let file =
            self.file().ok_or(Error::NotMemory { fd: -1, why: "what was opened is not exported again" })?;
        sys::duplicate(file).map_err(Error::of("fcntl"))
    }

    /// Another fd of an fd that somebody else has, by its number.
    pub fn fd_by_number(number: i32) -> Result<OwnedFd> {
        sys::duplicate_number(number)
            .map_err(|_| Error::NotMemory { fd: number, why: "there is no such fd in this process" })
    }
}
