//! [`owner`]: the user who has bound an abstract name, for names at which nothing answers.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

// `sock_diag(7)`, `netlink(7)` and `linux/unix_diag.h`.
const LENGTH: u32 = 40;
const HEADER: usize = 16;
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const AF_UNIX: u8 = 1;
const SEQPACKET: u8 = 5;
/// Bound, and listening. (Connected ones have the name of their listener.)
const STATES: u32 = 1 << 7 | 1 << 10;
const SHOW_NAME_AND_UID: u32 = 0x41;
const NAME: u16 = 0;
const UID: u16 = 7;
/// Of a `unix_diag_msg`, which attributes follow.
const MESSAGE: usize = 16;

/// The user whose process made the `SOCK_SEQPACKET` socket that has an abstract name; `None` if there is
/// none, or the kernel does not say (no `CONFIG_UNIX_DIAG`, or before Linux 5.3).
pub(crate) fn owner(name: &[u8]) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG));
    let socket = socket.ok()?;
    let mut request = Vec::with_capacity(LENGTH as usize);
    request.extend(LENGTH.to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([AF_UNIX, 0, 0, 0]);
    request.extend(STATES.to_ne_bytes());
    request.extend([0; 4]);
    request.extend(SHOW_NAME_AND_UID.to_ne_bytes());
    request.extend([0; 8]);
    rustix::net::send(&socket, &request, SendFlags::empty()).ok()?;
    let mut buffer = vec![0; 32 << 10];
    loop {
        let received =
            rustix::io::retry_on_intr(|| rustix::net::recv(&socket, &mut *buffer, RecvFlags::DONTWAIT));
        let mut rest = &buffer[..received.ok()?.0];
        while let Some((length, kind)) =
            rest.split_at_checked(6).map(|(head, _)| (u32_at(head, 0), u16_at(head, 4)))
        {
            let (message, next) = split(rest, length as usize)?;
            match kind {
                DONE | ERROR => return None,
                BY_FAMILY => {
                    let uid = message.get(HEADER..).and_then(|message| uid_of(message, name));
                    if uid.is_some() {
                        return uid;
                    }
                }
                _ => {}
            }
            rest = next;
        }
    }
}

/// The user of the socket that a message is about, if the socket has the name.
fn uid_of(message: &[u8], name: &[u8]) -> Option<u32> {
    let (head, mut attributes) = message.split_at_checked(MESSAGE)?;
    if head[1] != SEQPACKET {
        return None;
    }
    let (mut is_named, mut uid) = (false, None);
    while let Some((head, _)) = attributes.split_at_checked(4) {
        let (attribute, next) = split(attributes, usize::from(u16_at(head, 0)))?;
        match (u16_at(head, 2), attribute.get(4..)?) {
            (NAME, [0, found @ ..]) => is_named = found == name,
            (UID, found) if found.len() == 4 => uid = Some(u32_at(found, 0)),
            _ => {}
        }
        attributes = next;
    }
    uid.filter(|_| is_named)
}

/// What has this length at the beginning, and what follows at the next multiple of 4.
fn split(bytes: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
    let first = bytes.get(..length).filter(|first| first.len() >= 4)?;
    Some((first, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn owner_of_bound_name_is_its_user() {
        let name = format!("umf-test-owner-{}", std::process::id());
        let name = name.as_bytes();
        let mine = sys::effective_uid();
        // Names of other kinds of sockets are others.
        let (_, address) = sys::socket(name).unwrap();
        let stream = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&stream, &address).unwrap();
        assert_eq!(owner(name), None);
        let (socket, address) = sys::socket(name).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        if owner(name).is_none() {
            println!("umf-skip: owner_of_bound_name_is_its_user: no sock_diag with users (Linux 5.3)");
            return;
        }
        assert_eq!(owner(name), Some(mine), "bound");
        rustix::net::listen(&socket, 1).unwrap();
        let (connected, address) = sys::socket(name).unwrap();
        rustix::net::connect(&connected, &address).unwrap();
        assert_eq!(owner(name), Some(mine), "listening");
        assert_eq!(owner(&name[1..]), None);
        drop(socket);
        assert_eq!(owner(name), None);
    }
}
