//! Commands for messages whose source or destination is a block of the actor's pools.

use umf::link::Memory;

use crate::memory::ActorState;
use crate::{Answer, Failure};

pub(crate) fn execute(actor: &mut ActorState, command: &str, words: &[&str]) -> Option<Answer> {
    Some(match (command, words) {
        ("link-send-block", [name, tag, pool, block]) => with(actor, pool, block, |actor, memory| {
            actor.links.link(name)?.send(tag.parse()?, memory)?;
            Ok(String::new())
        }),
        // Answers with length and engine.
        ("link-recv-block", [name, tag, pool, block]) => with(actor, pool, block, |actor, memory| {
            let received = actor.links.link(name)?.recv(tag.parse::<u64>()?, memory)?;
            Ok(format!("{} {}", received.length, received.engine))
        }),
        _ => return None,
    })
}

/// Runs `run` with a block as link memory, including the host access of its provider.
fn with(
    actor: &mut ActorState,
    pool: &str,
    block: &str,
    run: impl FnOnce(&mut ActorState, &Memory<'_>) -> Answer,
) -> Answer {
    let raw = actor.block(block)?;
    let provider = actor.pool(pool)?.provider().clone();
    let handle = crate::memory::handle(raw.address)?;
    let pointer = raw.address.as_ptr().ok_or_else(|| Failure::new("Inaccessible", block))?;
    // SAFETY: the block is live during the command, which frees nothing.
    let slice = unsafe { umf::View::new(pointer, raw.size) }?;
    let memory = Memory::new(&handle, slice)?.with_host_access(provider.host_access());
    run(actor, &memory)
}
