//! Messages from and into blocks of the actor's pools.

use umf::link::Memory;

use crate::memory::Actor;
use crate::{Answer, Failure};

pub(crate) fn obey(actor: &mut Actor, command: &str, words: &[&str]) -> Option<Answer> {
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

/// Hands a block to a link, and its provider's ability with it.
fn with(
    actor: &mut Actor,
    pool: &str,
    block: &str,
    run: impl FnOnce(&mut Actor, &Memory<'_>) -> Answer,
) -> Answer {
    let held = actor.block(block)?;
    let provider = actor.pool(pool)?.provider().clone();
    let handle = crate::memory::handle(held.address)?;
    let pointer = held.address.as_ptr().ok_or_else(|| Failure::new("Inaccessible", block))?;
    // SAFETY: the block stays as long as the command, which frees nothing.
    let slice = unsafe { umf::View::new(pointer, held.size) }?;
    let memory = Memory::new(&handle, slice)?.with_host_access(provider.host_access());
    run(actor, &memory)
}
