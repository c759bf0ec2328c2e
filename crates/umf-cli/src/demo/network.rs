//! Two network namespaces that play two machines: that of the producer of `umf demo --remote`, and
//! that of its child, the consumer, joined by a veth pair.
//!
//! Both belong to a user namespace that the producer makes. So this needs no rights, changes
//! nothing of the machine, and ends with the two processes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use umf_os::environment::variable;

use crate::child::{self, ChildError};

/// The addresses of producer and consumer: a range for tests (RFC 2544).
pub(super) const PRODUCER: &str = "198.18.0.1";
const CONSUMER: &str = "198.18.0.2";
const PREFIX: &str = "/30";
/// The names of the interfaces, in their namespaces.
const PRODUCER_INTERFACE: &str = "umf0";
const CONSUMER_INTERFACE: &str = "umf1";
/// The longest wait for a program.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Moves this process, which has one thread, into a user namespace and a network namespace of its
/// own. Returns the program `ip`.
///
/// # Errors
/// The reason as text. This process may have been moved nevertheless.
pub(super) fn leave_network() -> Result<PathBuf, String> {
    let ip = find_ip().ok_or("there is no program ip(8) (Debian: iproute2)")?;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    match unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) {
        Ok(()) => {
            // The consumer needs to be root of this namespace after exec.
            let write = |name: &str, text: String| {
                let path = Path::new("/proc/self").join(name);
                std::fs::write(&path, text)
                    .map_err(|error| format!("cannot write {}: {error}", path.display()))
            };
            write("setgroups", "deny".to_owned())?;
            write("uid_map", format!("0 {user} 1"))?;
            write("gid_map", format!("0 {group} 1"))?;
        }
        // Where user namespaces are refused, root may make one for the network.
        Err(error) => unshare(UnshareFlags::NEWNET)
            .map_err(|_| format!("the kernel refuses namespaces of users and networks: {error}"))?,
    }
    // A change of rights clears it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    Ok(ip)
}

/// Moves this process, a child of one in [`leave_network`], into a network namespace of its own.
///
/// # Errors
/// The reason as text.
pub(super) fn leave_network_of_parent() -> Result<(), String> {
    unshare(UnshareFlags::NEWNET)
        .map_err(|error| format!("the kernel refuses a second namespace of a network: {error}"))
}

fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: namespaces of users and networks change no memory or descriptor of this process.
    unsafe { unshare_unsafe(flags) }
}

fn find_ip() -> Option<PathBuf> {
    // The path of users lacks the folders of administrators.
    let path = variable("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join("ip")).find(|file| file.is_file())
}

/// Joins the network namespace of this process with that of the consumer.
///
/// # Errors
/// The command that failed.
pub(super) fn join(ip: &Path, consumer: u32) -> Result<(), String> {
    let consumer = consumer.to_string();
    let pair = ["link", "add", PRODUCER_INTERFACE, "type", "veth", "peer", "name", CONSUMER_INTERFACE];
    run(ip, &[&pair[..], &["netns", &consumer]].concat())?;
    set_up(ip, PRODUCER_INTERFACE, PRODUCER)
}

/// Gives the consumer's interface its address. Runs in the consumer.
///
/// # Errors
/// The command that failed.
pub(super) fn set_up_consumer() -> Result<(), String> {
    set_up(&find_ip().ok_or("there is no program ip(8)")?, CONSUMER_INTERFACE, CONSUMER)
}

fn set_up(ip: &Path, interface: &str, address: &str) -> Result<(), String> {
    run(ip, &["addr", "add", &format!("{address}{PREFIX}"), "dev", interface])?;
    run(ip, &["link", "set", interface, "up"])?;
    run(ip, &["link", "set", "lo", "up"])
}

fn run(ip: &Path, arguments: &[&str]) -> Result<(), String> {
    let result: Result<String, ChildError> = child::output_of(ip, arguments, TIMEOUT);
    result.map(drop).map_err(|error| format!("`ip {}` {error}", arguments.join(" ")))
}
