//! Messages of all kinds, which both sides know beforehand.

use std::sync::OnceLock;
use std::time::Duration;

use umf::link::{Destination, Lent, Link, SendRequest, Source};
use umf_tests::Sequence;

use super::{Memory, content, memory};
use crate::memory::holds;
use crate::{Answer, Failure};

/// The longest message.
const LONGEST: usize = 1 << 20;

/// What this process sends from and receives into: the same each time, so that nothing grows.
static OWN: OnceLock<(&'static Memory<'static>, &'static Memory<'static>)> = OnceLock::new();

/// How a message is sent.
#[derive(Clone, Copy, Debug)]
enum Form {
    Plain,
    /// From memory of a pool.
    Pool,
    /// As a list.
    List,
    /// Handed over.
    Lent,
}

/// One message; both sides draw the same ones.
#[derive(Clone, Copy, Debug)]
struct Message {
    tag: u64,
    size: usize,
    seed: u64,
    form: Form,
    /// Whether its sender, or its receiver, rests before it.
    rests: [bool; 2],
}

impl Message {
    fn draw(sequence: &mut Sequence) -> Self {
        let largest = *sequence.of(&[8, 64, 240, 300, 2000, 4096, 5000]);
        let largest = match sequence.below(1000) {
            0 => LONGEST as u64,
            1..10 => 200_000,
            10..40 => 40_000,
            _ => largest,
        };
        let form = match sequence.below(20) {
            0..3 => Form::Pool,
            3..5 => Form::List,
            5 => Form::Lent,
            _ => Form::Plain,
        };
        let (tag, seed) = (sequence.number(), sequence.number());
        let size = usize::try_from(sequence.below(largest + 1)).unwrap();
        let rests = [sequence.one_in(3000), sequence.one_in(3000)];
        // Nothing cannot be lent.
        Self { tag, size: size.max(1), seed, form, rests }
    }

    fn rest(&self, side: usize) {
        if self.rests[side] {
            std::thread::sleep(Duration::from_millis(self.seed % 30));
        }
    }
}

/// Sends what the seed `mine` yields, and receives what `theirs` does, one message of each at a time.
pub(super) fn both_ways(mut link: Link, mine: &str, theirs: &str, count: &str) -> Answer {
    let (mine, theirs, count): (u64, u64, u64) = (mine.parse()?, theirs.parse()?, count.parse()?);
    let (from, into) = match OWN.get() {
        Some(own) => *own,
        None => {
            let own = (memory(LONGEST)?, memory(LONGEST)?);
            *OWN.get_or_init(|| own)
        }
    };
    let (both, is_first) =
        (std::env::var("UMF_LINK_ENGINE").is_ok_and(|engine| engine == "both"), mine < theirs);
    let (mut mine, mut theirs) = (Sequence::new(mine), Sequence::new(theirs));
    let mut buffer = vec![0; LONGEST];
    for number in 0..count {
        let (message, coming) = (Message::draw(&mut mine), Message::draw(&mut theirs));
        let bytes = content(message.size, message.seed);
        if both {
            // Both sides copy one message, of one side at a time.
            if is_first {
                message.rest(0);
                link.send(message.tag, &bytes)?;
                receive_alone(&mut link, number, coming, (into, &mut buffer))?;
            } else {
                receive_alone(&mut link, number, coming, (into, &mut buffer))?;
                message.rest(0);
                from.part(0, message.size)?.slice().copy_from(&bytes);
                link.send(message.tag, from.part(0, message.size)?)?;
            }
            continue;
        }
        message.rest(0);
        let mut going = begin(&mut link, message, &bytes, from)?;
        coming.rest(1);
        let sends = match &mut going {
            Going::Request(request) => std::slice::from_mut(&mut **request),
            Going::Lent(_) => &mut [],
        };
        receive(&mut link, number, coming, sends, (into, &mut buffer))?;
        if let Going::Lent(lent) = going {
            lent.wait(link.timeout())?;
        }
    }
    let all = link.statistics();
    Ok(format!("sent={count} received={count} refused={}", all.refused_cma + all.refused_mapped))
}

/// Receives one message by a call that waits.
fn receive_alone(
    link: &mut Link,
    number: u64,
    message: Message,
    (memory, into): (&'static Memory<'static>, &mut [u8]),
) -> Result<(), Failure> {
    message.rest(1);
    let length = if message.seed.is_multiple_of(3) {
        let length = link.recv(message.tag, memory)?.length;
        memory.slice().range(..length).unwrap().copy_to(into);
        length
    } else {
        link.recv(message.tag, &mut *into)?.length
    };
    check(number, message, &into[..length])
}

fn check(number: u64, message: Message, came: &[u8]) -> Result<(), Failure> {
    if came.len() == message.size && holds(came, message.seed) {
        return Ok(());
    }
    Err(Failure::new("WrongContent", format!("message {number}: {message:?}, {} came", came.len())))
}

/// A message that is being sent.
enum Going<'d> {
    Request(Box<SendRequest<'d>>),
    Lent(Lent<'d>),
}

fn begin<'d>(
    link: &mut Link,
    Message { tag, size, form, .. }: Message,
    bytes: &'d [u8],
    memory: &'static Memory<'static>,
) -> Result<Going<'d>, Failure> {
    let part = || memory.part(0, size);
    if matches!(form, Form::Pool | Form::Lent) {
        part()?.slice().copy_from(bytes);
    }
    Ok(match form {
        Form::Plain => Going::Request(Box::new(link.start_send(tag, bytes)?)),
        Form::List => Going::Request(Box::new(link.start_send(tag, Source::list(bytes.chunks(1000)))?)),
        Form::Pool => Going::Request(Box::new(link.start_send(tag, part()?)?)),
        Form::Lent => Going::Lent(link.hand_over(tag, part()?)?),
    })
}

/// Receives one message while others are sent.
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
        (Form::Lent, 0 | 1) => {
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
