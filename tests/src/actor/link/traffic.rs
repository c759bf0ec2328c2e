//! Messages of all kinds, which both sides know beforehand.

use std::sync::OnceLock;
use std::time::Duration;

use umf::link::{Destination, Link, Receiver, Sender, Source};
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

/// Sends what the seed `mine` yields, and receives what `theirs` does.
pub(super) fn both_ways(link: Link, mine: &str, theirs: &str, count: &str) -> Answer {
    let (mine, theirs, count): (u64, u64, u64) = (mine.parse()?, theirs.parse()?, count.parse()?);
    let (mut sender, mut receiver) = link.split();
    let (from, into) = match OWN.get() {
        Some(own) => *own,
        None => {
            let own = (memory(LONGEST)?, memory(LONGEST)?);
            *OWN.get_or_init(|| own)
        }
    };
    let (sent, received) = std::thread::scope(|scope| {
        let sends = scope.spawn(|| send(&mut sender, Sequence::new(mine), count, from));
        let received = receive(&mut receiver, Sequence::new(theirs), count, into);
        (sends.join().unwrap(), received)
    });
    // What is wrong with what came is more than that the link ended.
    let received = received?;
    sent?;
    let all = receiver.statistics();
    Ok(format!("sent={count} received={received} refused={}", all.refused_cma + all.refused_mapped))
}

fn send(
    sender: &mut Sender,
    mut sequence: Sequence,
    count: u64,
    memory: &'static Memory<'static>,
) -> Result<(), Failure> {
    for _ in 0..count {
        let message = Message::draw(&mut sequence);
        message.rest(0);
        let Message { tag, size, seed, form, .. } = message;
        let bytes = content(size, seed);
        let part = || memory.part(0, size);
        match form {
            Form::Plain => sender.send(tag, &bytes)?,
            Form::List => sender.send(tag, Source::list(bytes.chunks(1000)))?,
            Form::Pool => {
                part()?.slice().copy_from(&bytes);
                sender.send(tag, part()?)?;
            }
            Form::Lent => {
                part()?.slice().copy_from(&bytes);
                sender.hand_over(tag, part()?)?.wait(sender.timeout())?;
            }
        }
    }
    Ok(())
}

fn receive(
    receiver: &mut Receiver,
    mut sequence: Sequence,
    count: u64,
    memory: &'static Memory<'static>,
) -> Result<u64, Failure> {
    let mut into = vec![0; LONGEST];
    for number in 0..count {
        let message = Message::draw(&mut sequence);
        message.rest(1);
        let Message { tag, size, seed, form, .. } = message;
        let length = match (form, seed % 3) {
            (Form::Lent, 0 | 1) => {
                let view = receiver.recv_view(tag)?;
                view.read(0, &mut into[..view.len()])?;
                view.len()
            }
            (_, 0) => {
                let length = receiver.recv(tag, memory)?.length;
                memory.slice().range(..length).unwrap().copy_to(&mut into);
                length
            }
            (_, 1) => receiver.recv(tag, Destination::list(into.chunks_mut(999)))?.length,
            _ => receiver.recv(tag, &mut into)?.length,
        };
        if length != size || !holds(&into[..length], seed) {
            return Err(Failure::new(
                "WrongContent",
                format!("message {number}: {message:?}, {length} came"),
            ));
        }
    }
    Ok(count)
}
