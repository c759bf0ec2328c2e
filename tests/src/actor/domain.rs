//! Domains and their objects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use umf::View;
use umf::domain::{Domain, DomainSettings, Error, Object, ObjectId, domain_settings};

use crate::memory::{fill, holds};
use crate::stress::next;
use crate::{Answer, Failure};

/// Domains and objects, by the names that commands give.
#[derive(Default)]
pub(crate) struct Domains {
    objects: HashMap<String, Object>,
    domains: HashMap<String, Domain>,
    /// Number of forked children that were killed at a failpoint.
    killed: u64,
}

pub(crate) fn execute(all: &mut Domains, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("join", [name]) => {
            domain_settings().map_err(Failure::from).and_then(|settings| join(all, name, settings))
        }
        ("join", [name, milliseconds]) => milliseconds.parse().map_err(Failure::from).and_then(|timeout| {
            let mut settings = domain_settings()?;
            settings.timeout = Duration::from_millis(timeout);
            join(all, name, settings)
        }),
        ("join", [name, "max", objects]) => objects.parse().map_err(Failure::from).and_then(|objects| {
            let mut settings = domain_settings()?;
            settings.max_objects = objects;
            join(all, name, settings)
        }),
        ("leave", [name]) => Ok(all.domains.remove(*name).is_some().to_string()),
        ("create", [domain, size, kind, "->", object]) => create(all, domain, size, kind, object),
        ("register", [domain, number, kind, "->", object]) => register(all, domain, number, kind, object),
        ("unregister", [domain, number]) => all.domain(domain).and_then(|domain| {
            domain.unregister(number_of(number)?)?;
            Ok(String::new())
        }),
        ("unregister-object", [object]) => match all.objects.remove(*object) {
            Some(object) => object.unregister().map(|()| String::new()).map_err(Failure::from),
            None => Err(Failure::unknown(object)),
        },
        ("drop-object", [object]) => Ok(all.objects.remove(*object).is_some().to_string()),
        ("is-registered", [object]) => all.object(object).map(|object| object.is_registered().to_string()),
        ("fill-object", [object, seed]) => all.object(object).and_then(|object| {
            fill(object.view()?, seed.parse()?);
            Ok(String::new())
        }),
        ("check-object", [object, seed]) => all.object(object).and_then(|object| {
            let mut content = vec![0; object.len()];
            object.view()?.copy_to(&mut content);
            Ok(if holds(&content, seed.parse()?) { "same" } else { "different" }.to_owned())
        }),
        ("objects", [domain]) => all.domain(domain).and_then(objects),
        ("children-killed", []) => Ok(all.killed.to_string()),
        ("cycle-objects", [domain, rounds]) => cycle(all, domain, rounds),
        ("domain-stress", [domain, index, seed, milliseconds]) => {
            stress(all, domain, index, seed, milliseconds)
        }
        _ => return None,
    })
}

impl Domains {
    fn domain(&self, name: &str) -> Result<&Domain, Failure> {
        self.domains.get(name).ok_or_else(|| Failure::unknown(name))
    }

    fn object(&self, name: &str) -> Result<&Object, Failure> {
        self.objects.get(name).ok_or_else(|| Failure::unknown(name))
    }
}

fn number_of(text: &str) -> Result<ObjectId, Failure> {
    text.parse().map_err(|error| Failure::new("Number", error))
}

fn join(all: &mut Domains, name: &str, settings: DomainSettings) -> Answer {
    let domain = Domain::join(name, settings)?;
    all.domains.insert(name.to_owned(), domain);
    Ok(String::new())
}

/// Creates an object and answers with its number.
fn create(all: &mut Domains, domain: &str, size: &str, kind: &str, name: &str) -> Answer {
    let object = all.domain(domain)?.create(size.parse()?, kind.parse()?)?;
    let number = object.id();
    all.objects.insert(name.to_owned(), object);
    Ok(number.to_string())
}

/// Registers an object and answers with its size.
fn register(all: &mut Domains, domain: &str, number: &str, kind: &str, name: &str) -> Answer {
    let object = all.domain(domain)?.register(number_of(number)?, kind.parse()?)?;
    let size = object.len();
    all.objects.insert(name.to_owned(), object);
    Ok(size.to_string())
}

/// Lists the objects of a domain, each as `number:kind:size:registrants`.
fn objects(domain: &Domain) -> Answer {
    let text = |object: umf::domain::ObjectInfo| {
        format!("{}:{}:{}:{}", object.id, object.kind, object.size, object.registrants)
    };
    Ok(domain.objects()?.into_iter().map(text).collect::<Vec<_>>().join(" "))
}

/// Creates, registers and drops objects, `rounds` times.
fn cycle(all: &Domains, domain: &str, rounds: &str) -> Answer {
    let domain = all.domain(domain)?;
    for round in 0..rounds.parse()? {
        let object = domain.create(4096, round)?;
        drop(domain.register(object.id(), round)?);
    }
    Ok(String::new())
}

/// Creates, registers and unregisters objects at random, concurrently with other processes, any of
/// which may be killed. All processes have one common object, the index, which holds the numbers of
/// the others. The first word of each object is its number. Answers with the counts of operations.
fn stress(all: &mut Domains, domain: &str, index: &str, seed: &str, milliseconds: &str) -> Answer {
    let (domain, index) = (all.domain(domain)?, all.object(index)?);
    let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
    let mut state: u64 = seed.parse()?;
    let mut objects: Vec<Object> = Vec::new();
    let (mut created, mut registered, mut gone) = (0_u64, 0_u64, 0_u64);
    let index = index.view()?;
    // A short index, so that most numbers in it are valid.
    let entries = 16;
    let mut killed = 0;
    while Instant::now() < end {
        if next(&mut state).is_multiple_of(200) {
            killed += u64::from(check_forked_child(domain)?);
        }
        let entry = word(index, (next(&mut state) % entries) as usize);
        match next(&mut state) % 4 {
            0 => {
                let object = domain.create(4096, KIND)?;
                word(object.view()?, 0).store(object.id().into(), Ordering::Release);
                entry.store(object.id().into(), Ordering::Release);
                objects.push(object);
                created += 1;
            }
            1 | 2 => {
                let number = entry.load(Ordering::Acquire);
                if number == 0 {
                    continue;
                }
                match domain.register(number.into(), KIND) {
                    Ok(object) => {
                        let found = word(object.view()?, 0).load(Ordering::Acquire);
                        if found != number {
                            return Err(Failure::new("WrongContent", format!("{found:#x} in {number:#x}")));
                        }
                        objects.push(object);
                        registered += 1;
                    }
                    Err(Error::NoSuchObject { .. }) => gone += 1,
                    Err(other) => return Err(other.into()),
                }
            }
            _ => {}
        }
        if objects.len() > 12 || next(&mut state).is_multiple_of(6) && !objects.is_empty() {
            let object = objects.swap_remove(next(&mut state) as usize % objects.len());
            if next(&mut state).is_multiple_of(2) {
                match object.unregister() {
                    // An object may be in `objects` twice, but has one registration.
                    Ok(()) | Err(Error::NotRegistered { .. }) => {}
                    Err(other) => return Err(other.into()),
                }
            }
        }
    }
    all.killed += killed;
    Ok(format!("created={created} registered={registered} gone={gone}"))
}

/// Forks a child, which must not be a member of the domain. Returns whether the child was killed at
/// a failpoint.
fn check_forked_child(domain: &Domain) -> Result<bool, Failure> {
    // SAFETY: umf and the allocator have fork handlers, so that the child can use both.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_refused = matches!(domain.create(4096, KIND), Err(Error::Forked));
        // SAFETY: ends the child without running exit handlers of the parent.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    if pid < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    match crate::process::wait_for(pid)?.as_str() {
        "0" => Ok(false),
        "9" => Ok(true),
        status => Err(Failure::new(
            "Child",
            format!("it is a member of its parent's domain, or ended with {status}"),
        )),
    }
}

/// Kind of all objects of [`stress`].
const KIND: u32 = 77;

fn word(words: View<'_, u64>, index: usize) -> &AtomicU64 {
    words.atomic(index).unwrap()
}
