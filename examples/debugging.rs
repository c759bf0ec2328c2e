//! Debugging: the history of a pool, a map of its memory, detection of writes after free, and a
//! leak report with allocation sites.

use umf::{CheckSettings, Leaks, Poison, Pool};

fn main() -> umf::Result<()> {
    let checks =
        CheckSettings::new().on_leaks(|report| println!("{report}")).on_fault(|fault| println!("{fault}"));
    let builder = Pool::builder().name("example").check(checks).history(1000).poison(Poison::Freed);
    let pool = builder.leaks(Leaks::Sites).build()?;

    read_configuration(&pool)?;
    write_after_free(&pool)?;

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
    // For `umf pool-map` and other tools: umf::map::to_json, umf::history::to_json.

    // Blocks that are live now are leaks.
    drop(pool);
    Ok(())
}

/// Leaks three blocks.
fn read_configuration(pool: &Pool) -> umf::Result<()> {
    for size in [100, 200, 300] {
        std::mem::forget(pool.allocate(size)?);
    }
    Ok(())
}

/// Writes to a freed block.
fn write_after_free(pool: &Pool) -> umf::Result<()> {
    let block = pool.allocate(4000)?;
    let stale = block.address();
    drop(block);
    if let Some(pointer) = stale.as_ptr() {
        // SAFETY: none; this is the bug to detect. The memory is still mapped, in the quarantine.
        unsafe { pointer.add(40).write(1) };
    }
    // A block is checked when it leaves the quarantine. Trimming empties the quarantine.
    pool.trim(0)?;
    Ok(())
}
