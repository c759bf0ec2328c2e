//! What a process has bound in a domain. A forked child closes all of it: a name lives as long as any
//! descriptor of its socket, and would say that the parent is alive when it is dead.

use rustix::io::Errno;
use umf_sync::failpoint;

use crate::sys::{self, CloseOnFork};

/// Binds an abstract name; `None` if somebody has it.
pub(crate) fn bind(name: &[u8]) -> sys::Result<Option<CloseOnFork>> {
    let bound = CloseOnFork::make(|| {
        let (socket, address) = sys::socket(name)?;
        rustix::net::bind(&socket, &address)?;
        failpoint!("domain.bound");
        // So that others can ask the kernel whose it is.
        rustix::net::listen(&socket, 128)?;
        failpoint!("domain.listening");
        Ok(socket)
    });
    match bound {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno),
    }
}
