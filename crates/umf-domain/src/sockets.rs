//! What a process has bound in a domain. A forked child closes all of it: a name lives as long as any
//! descriptor of its socket, and would say that the parent is alive when it is dead.

use rustix::io::Errno;
use umf_sync::failpoint;

use crate::sys::{self, CloseOnFork};

/// Binds an abstract name; `None` if somebody has it.
pub(crate) fn bind(name: &[u8]) -> sys::Result<Option<CloseOnFork>> {
    let bound = bind_first([(0, name.to_vec())])?;
    Ok(bound.map(|(_, socket)| socket))
}

/// Binds the first of these abstract names that no socket has, and returns its number; `None` if sockets have all.
/// Forks wait meanwhile.
pub(crate) fn bind_first(
    names: impl IntoIterator<Item = (u16, Vec<u8>)>,
) -> sys::Result<Option<(u16, CloseOnFork)>> {
    let mut bound = 0;
    let made = CloseOnFork::make(|| {
        let mut names = names.into_iter();
        let (number, name) = names.next().ok_or(Errno::ADDRINUSE)?;
        let (socket, mut address) = sys::socket(&name)?;
        bound = number;
        // A socket that could not be bound to one name can be bound to another.
        while let Err(errno) = rustix::net::bind(&socket, &address) {
            let next = names.next().filter(|_| errno == Errno::ADDRINUSE);
            let (number, name) = next.ok_or(errno)?;
            (bound, address) = (number, sys::address(&name)?);
        }
        failpoint!("domain.bound");
        // So that others can ask the kernel whose it is.
        rustix::net::listen(&socket, 128)?;
        failpoint!("domain.listening");
        Ok(socket)
    });
    match made {
        Ok(socket) => Ok(Some((bound, socket))),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno),
    }
}
