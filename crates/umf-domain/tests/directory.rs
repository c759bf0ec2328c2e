//! Domains in a directory: processes that have taken names, left-overs, unsuitable directories.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use umf_domain::{Domain, DomainSettings, Error};
use umf_ipc::Allow;
use umf_ipc::rendezvous::{Directory, DirectoryError, NamedSocket};

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("umf-domain-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn settings(&self, allow: Allow) -> DomainSettings {
        let mut settings = DomainSettings::default();
        (settings.directory, settings.allow) = (Some(self.0.clone()), allow);
        settings
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Binds the name of participant 0, which a process reads in the directory while the domain exists.
fn squat(folder: &Folder, domain: &str, settings: &DomainSettings) -> NamedSocket {
    let participant = Domain::join(domain, settings.clone()).unwrap();
    let names = Directory::new(&folder.0).names("umf-").unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(names[0].ends_with("-0") && !names[0].contains(domain), "{names:?}");
    drop(participant);
    assert!(folder.files().is_empty());
    Directory::new(&folder.0).bind(&names[0], 0o666, 8).unwrap().unwrap()
}

#[test]
fn domains_of_two_rules_and_of_none_are_separate() {
    let folder = Folder::new("separate");
    let name = "a-name-of-64-characters:/+=@-that-fits-no-path-as-it-has-slashes";
    let domains: Vec<_> = [Allow::SameUser, Allow::Group]
        .map(|allow| folder.settings(allow))
        .into_iter()
        .chain([DomainSettings::default()])
        .map(|settings| Domain::join(name, settings).unwrap())
        .collect();
    let objects: Vec<_> = domains.iter().map(|domain| domain.create(1, 1).unwrap()).collect();
    assert!(domains.iter().all(|domain| domain.objects().unwrap().len() == 1));
    // The same domain by another path of the directory.
    let other = folder.0.join("../").join(folder.0.file_name().unwrap());
    let mut settings = folder.settings(Allow::SameUser);
    settings.directory = Some(other);
    let same = Domain::join(name, settings).unwrap();
    let found = same.register(objects[0].id(), 1).unwrap();
    assert_eq!(same.objects().unwrap()[0].registrants, 2);
    drop((found, same, objects, domains));
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

/// A process that listens at the name of a participant and does not have the key.
#[test]
fn join_goes_on_past_process_without_key() {
    let folder = Folder::new("squatter");
    let settings = folder.settings(Allow::Handle);
    let mut squatter = squat(&folder, "secret", &settings);
    let listener = squatter.take_listener().unwrap();
    let answering = std::thread::spawn(move || {
        let mut received = Vec::new();
        while received.len() < 2 {
            rustix::event::poll(
                &mut [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)],
                None,
            )
            .unwrap();
            let connection = rustix::net::accept(&listener).unwrap();
            let mut bytes = [0; 100];
            let (length, _) =
                rustix::net::recv(&connection, &mut bytes, rustix::net::RecvFlags::empty()).unwrap();
            received.push(bytes[..length].to_vec());
            // A challenge with a wrong tag.
            let mut answer = bytes[..length].to_vec();
            answer[6] = 2;
            let _ = rustix::net::send(&connection, &answer, rustix::net::SendFlags::NOSIGNAL);
            // The client sends nothing more.
            let rest = rustix::net::recv(&connection, &mut bytes, rustix::net::RecvFlags::empty());
            assert!(matches!(rest, Ok((0, _)) | Err(_)), "{rest:?}");
        }
        received
    });
    let first = Domain::join("secret", settings.clone()).unwrap();
    let object = first.create(1, 1).unwrap();
    assert_eq!(first.objects().unwrap().len(), 1);
    drop((object, first));
    let second = Domain::join("secret", settings).unwrap();
    second.create(1, 1).unwrap();
    drop(second);
    for packet in answering.join().unwrap() {
        assert!(!packet.windows(6).any(|bytes| bytes == b"secret"));
    }
    drop(squatter);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

/// A process that has the lock of a name and accepts no connection looks like a stopped
/// participant.
#[test]
fn silent_owner_of_name_times_join_out() {
    let folder = Folder::new("silent");
    let mut settings = folder.settings(Allow::SameUser);
    settings.timeout = Duration::from_millis(300);
    let squatter = squat(&folder, "silent", &settings);
    assert!(matches!(Domain::join("silent", settings.clone()), Err(Error::TimedOut { .. })));
    drop(squatter);
    Domain::join("silent", settings.clone()).unwrap();
    // The arbiter, held by another process.
    let names: Vec<_> = {
        let _participant = Domain::join("silent", settings.clone()).unwrap();
        Directory::new(&folder.0).names("umf-").unwrap()
    };
    let arbiter = format!("{}arbiter", names[0].strip_suffix('0').unwrap());
    let held = Directory::new(&folder.0).try_lock(&arbiter, 0o600).unwrap().unwrap();
    match Domain::join("silent", settings.clone()) {
        Err(Error::ArbiterHeld { socket, .. }) => assert!(socket.ends_with(&arbiter), "{socket}"),
        other => unreachable!("{other:?}"),
    }
    drop(held);
    // A left-over of a killed holder is taken over.
    std::fs::write(folder.0.join(format!("{arbiter}.lock")), "").unwrap();
    Domain::join("silent", settings).unwrap();
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

#[test]
fn unsuitable_directory_fails_join_with_reason() {
    let folder = Folder::new("unsuitable");
    let mut settings = folder.settings(Allow::SameUser);
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o777)).unwrap();
    let refused = Domain::join("unsuitable", settings.clone());
    assert!(matches!(refused, Err(Error::Directory(DirectoryError::WritableByOthers { .. }))), "{refused:?}");
    settings.directory = Some(folder.0.join("missing"));
    let missing = Domain::join("unsuitable", settings).unwrap_err();
    assert!(missing.to_string().contains("UMF_IPC_DIR"), "{missing}");
}
