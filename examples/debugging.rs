//! Finding mistakes: what happened in a pool, what its memory looks like, who writes to what was freed, and what was never
//! freed, with the place where it was allocated.

use umf::{CheckSettings, Leaks, Poison, Pool};

fn main() -> umf::Result<()> {
    let checks =
        CheckSettings::new().on_leaks(|report| println!("{report}")).on_fault(|fault| println!("{fault}"));
    let builder = Pool::builder().name("watched").check(checks).history(1000).poison(Poison::Freed);
    let pool = builder.leaks(Leaks::Sites).build()?;

    read_configuration(&pool)?;
    write_to_what_was_freed(&pool)?;

    print!("{}", pool.history()?);

    let totals = pool.map()?.totals();
    println!(
        "{} of {} bytes live in {} sizes; fragmentation {:.2} inside of blocks, {:.2} outside",
        totals.live,
        totals.reserved,
        totals.sizes.len(),
        totals.internal_fragmentation(),
        totals.external_fragmentation()
    );
    // As JSON, for `umf pool-map` and others: umf::map::to_json, umf::history::to_json.

    // What is live now was never freed.
    drop(pool);
    Ok(())
}

/// Forgets something.
fn read_configuration(pool: &Pool) -> umf::Result<()> {
    for size in [100, 200, 300] {
        std::mem::forget(pool.allocate(size)?);
    }
    Ok(())
}

/// Remembers an address for too long.
fn write_to_what_was_freed(pool: &Pool) -> umf::Result<()> {
    let block = pool.allocate(4000)?;
    let stale = block.address();
    drop(block);
    if let Some(pointer) = stale.as_ptr() {
        // SAFETY: none, and that is the mistake: the pool still has the memory, but may give it to anyone.
        unsafe { pointer.add(40).write(1) };
    }
    // The block is compared when newer ones push it out of the quarantine, or the pool is trimmed.
    pool.trim(0)?;
    Ok(())
}
