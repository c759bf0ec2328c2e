//! Random messages in both directions. Both sides derive the messages from seeds, so that each
//! knows what it will receive.

use std::sync::OnceLock;
use std::time::Duration;

use umf::link::{Destination, Link, Loan, SendRequest, Source};
use umf_tests::Rng;

use super::{Memory, content, memory};
use crate::memory::holds;
use crate::{Answer, Failure};

/// Maximum length of a message.
const LONGEST: usize = 1 << 20;

/// Source and destination memory. All calls use the same memory, so that the process does not grow.
static BUFFERS: OnceLock<(&'static Memory<'static>, &'static Memory<'static>)> = OnceLock::new();

/// Form in which a message is sent.
#[derive(Clone, Copy, Debug)]
enum Form {
    Plain,
    /// From memory of a pool.
    Pool,
    /// As a list of slices.
    List,
    /// As memory that is handed over.
    Loan,
}

/// Message, as drawn from a seed.
#[derive(Clone, Copy, Debug)]
struct Message {
    tag: u64,
    size: usize,
    seed: u64,
    form: Form,
    /// Whether the sender, or the receiver, sleeps before the message.
    sleeps: [bool; 2],
}

impl Message {
    fn draw(rng: &mut Rng) -> Self {
        let largest = *rng.choose(&[8, 64, 240, 300, 2000, 4096, 5000]);
        let largest = match rng.below(1000) {
            0 => LONGEST as u64,
            1..10 => 200_000,
            10..40 => 40_000,
            _ => largest,
        };
        let form = match rng.below(20) {
            0..3 => Form::Pool,
            3..5 => Form::List,
            5 => Form::Loan,
            _ => Form::Plain,
        };
        let (tag, seed) = (rng.next_u64(), rng.next_u64());
        let size = usize::try_from(rng.below(largest + 1)).unwrap();
        let sleeps = [rng.one_in(3000), rng.one_in(3000)];
        // Empty memory cannot be handed over.
        Self { tag, size: size.max(1), seed, form, sleeps }
    }

    fn maybe_sleep(&self, side: usize) {
        if self.sleeps[side] {
            std::thread::sleep(Duration::from_millis(self.seed % 30));
        }
    }
}

/// Sends the messages of `seed` and receives those of `peer_seed`, one of each at a time.
pub(super) fn both_ways(mut link: Link, seed: &str, peer_seed: &str, count: &str) -> Answer {
    let (seed, peer_seed, count): (u64, u64, u64) = (seed.parse()?, peer_seed.parse()?, count.parse()?);
    let (from, into) = match BUFFERS.get() {
        Some(buffers) => *buffers,
        None => {
            let buffers = (memory(LONGEST)?, memory(LONGEST)?);
            *BUFFERS.get_or_init(|| buffers)
        }
    };
    let (both, is_first) =
        (std::env::var("UMF_LINK_ENGINE").is_ok_and(|engine| engine == "both"), seed < peer_seed);
    let (mut rng, mut peer_rng) = (Rng::new(seed), Rng::new(peer_seed));
    let mut buffer = vec![0; LONGEST];
    for number in 0..count {
        let (message, incoming) = (Message::draw(&mut rng), Message::draw(&mut peer_rng));
        let bytes = content(message.size, message.seed);
        if both {
            // Engine `both`: both sides copy one message, so that they send in turn.
            if is_first {
                message.maybe_sleep(0);
                link.send(message.tag, &bytes)?;
                receive_alone(&mut link, number, incoming, (into, &mut buffer))?;
            } else {
                receive_alone(&mut link, number, incoming, (into, &mut buffer))?;
                message.maybe_sleep(0);
                from.part(0, message.size)?.slice().copy_from(&bytes);
                link.send(message.tag, from.part(0, message.size)?)?;
            }
            continue;
        }
        message.maybe_sleep(0);
        let mut outgoing = begin(&mut link, message, &bytes, from)?;
        incoming.maybe_sleep(1);
        let sends = match &mut outgoing {
            Outgoing::Request(request) => std::slice::from_mut(&mut **request),
            Outgoing::Loan(_) => &mut [],
        };
        receive(&mut link, number, incoming, sends, (into, &mut buffer))?;
        if let Outgoing::Loan(lent) = outgoing {
            lent.wait(link.timeout())?;
        }
    }
    let all = link.statistics();
    Ok(format!("sent={count} received={count} refused={}", all.refused_cma + all.refused_mapped))
}

/// Receives one message by a blocking call.
fn receive_alone(
    link: &mut Link,
    number: u64,
    message: Message,
    (memory, into): (&'static Memory<'static>, &mut [u8]),
) -> Result<(), Failure> {
    message.maybe_sleep(1);
    let length = if message.seed.is_multiple_of(3) {
        let length = link.recv(message.tag, memory)?.length;
        memory.slice().range(..length).unwrap().copy_to(into);
        length
    } else {
        link.recv(message.tag, &mut *into)?.length
    };
    check(number, message, &into[..length])
}

fn check(number: u64, message: Message, received: &[u8]) -> Result<(), Failure> {
    if received.len() == message.size && holds(received, message.seed) {
        return Ok(());
    }
    let length = received.len();
    Err(Failure::new("WrongContent", format!("message {number}: {message:?}, {length} bytes received")))
}

/// Send in progress.
enum Outgoing<'d> {
    Request(Box<SendRequest<'d>>),
    Loan(Loan<'d>),
}

fn begin<'d>(
    link: &mut Link,
    Message { tag, size, form, .. }: Message,
    bytes: &'d [u8],
    memory: &'static Memory<'static>,
) -> Result<Outgoing<'d>, Failure> {
    let part = || memory.part(0, size);
    if matches!(form, Form::Pool | Form::Loan) {
        part()?.slice().copy_from(bytes);
    }
    Ok(match form {
        Form::Plain => Outgoing::Request(Box::new(link.start_send(tag, bytes)?)),
        Form::List => Outgoing::Request(Box::new(link.start_send(tag, Source::list(bytes.chunks(1000)))?)),
        Form::Pool => Outgoing::Request(Box::new(link.start_send(tag, part()?)?)),
        Form::Loan => Outgoing::Loan(link.hand_over(tag, part()?)?),
    })
}

/// Receives one message while `sends` are in progress.
fn receive(
    link: &mut Link,
    number: u64,
    message: Message,
    sends: &mut [SendRequest<'_>],
    (memory, into): (&'static Memory<'static>, &mut [u8]),
) -> Result<(), Failure> {
    let Message { tag, seed, form, .. } = message;
    let mut finish = |link: &mut Link, into: Destination<'_>| -> Result<usize, Failure> {
        let mut receives = [link.start_recv(tag, into)];
        link.finish(sends, &mut receives)?;
        Ok(receives[0].received().unwrap().length)
    };
    let length = match (form, seed % 3) {
        (Form::Loan, 0 | 1) => {
            let view = link.recv_view(tag)?;
            view.read(0, &mut into[..view.len()])?;
            let length = view.len();
            drop(view);
            link.finish(sends, &mut [])?;
            length
        }
        (_, 0) => {
            let length = finish(link, memory.into())?;
            memory.slice().range(..length).unwrap().copy_to(into);
            length
        }
        (_, 1) => finish(link, Destination::list(into.chunks_mut(999)))?,
        _ => finish(link, (&mut *into).into())?,
    };
    check(number, message, &into[..length])
}
