//! [`PoolMap`] as an SVG picture.
//!
//! A region is drawn in lines of cells below a ruler, with the offset of each line beside it. Runs
//! of equal regions, and of lines within blocks of one size, are drawn once, with their number.

use std::fmt::Write;
use std::ops::Range;

use umf_core::map::{Piece, PieceState, PoolMap, RegionMap};

/// Cells per line.
const CELLS: u64 = 256;
/// Size of a cell in the picture's units.
const WIDTH: u64 = 4;
const HEIGHT: u64 = 10;
/// Limit of the lines of all regions. For larger pools a cell stands for more bytes.
const LINES: u64 = 1024;
/// The fewest bytes that a cell stands for.
const SMALLEST_CELL: u64 = 256;
/// Cells between two marks of the ruler.
const MARK: u64 = 32;
/// The fewest cells of a block whose boundaries are drawn.
const BOUNDED: u64 = 3;
/// The fewest equal lines that are drawn as one.
const FOLDED: u64 = 3;
/// Limit of the regions that are drawn. The picture states how many it leaves out.
const REGIONS: usize = 512;

const MARGIN: u64 = 12;
const CAPTION: u64 = 16;
/// Width of the offsets on the left of the lines.
const OFFSETS: u64 = 64;

const STATES: [(PieceState, &str, &str); 5] = [
    (PieceState::Live, "live", "#2b6cb0"),
    (PieceState::Held, "held", "#c05621"),
    (PieceState::Quarantined, "quarantined", "#805ad5"),
    (PieceState::Cached, "cached", "#90cdf4"),
    (PieceState::Free, "free", "#e2e8f0"),
];
const UNUSABLE: &str = "#718096";

/// Returns a picture of the regions, one below the other. Each cell has the colour of the state
/// that most of its bytes have. Lines mark the boundaries of blocks of at least three cells. The
/// picture's size is bounded, whatever the size of the pool.
#[must_use]
pub fn to_svg(map: &PoolMap) -> String {
    let totals = map.totals();
    // A run of regions with equal contents is one picture.
    let runs: Vec<&[RegionMap]> =
        map.regions.chunk_by(|one, other| one.size == other.size && one.pieces == other.pieces).collect();
    let drawn = &runs[..runs.len().min(REGIONS)];
    let cell = cell_size(drawn);
    let mut body = String::new();
    let mut y = MARGIN + 4 * CAPTION;
    let mut number = 0;
    for run in drawn {
        let Some(region) = run.first() else { continue };
        let heading = match run.len() {
            1 => format!("region {number} at {:?}, {}", region.base, bytes(region.size)),
            count => format!(
                "regions {number} to {}: {count} regions of {} with the same contents, the first at {:?}",
                number + count - 1,
                bytes(region.size),
                region.base
            ),
        };
        number += run.len();
        text(&mut body, y, &heading);
        y = ruler(&mut body, region, cell, y + CAPTION);
        y = draw(&mut body, region, cell, y + 3) + 2 * CAPTION;
    }
    if number < map.regions.len() {
        text(&mut body, y, &format!("and {} more regions", map.regions.len() - number));
        y += CAPTION;
    }
    let (width, height) = (OFFSETS + CELLS * WIDTH + 3 * MARGIN, y);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let summary = format!(
        "pool {}: {} reserved, {} live, {} held, {} quarantined, {} cached, {} free (largest {})",
        escaped(&map.pool),
        bytes(totals.reserved),
        bytes(totals.live),
        bytes(totals.held),
        bytes(totals.quarantined),
        bytes(totals.cached),
        bytes(totals.free),
        bytes(totals.largest_free),
    );
    text(&mut picture, MARGIN + CAPTION / 2, &summary);
    let scale = format!(
        "fragmentation {:.2} outside and {:.2} inside of blocks; a cell is {}, a line is {}; boundaries are drawn of \
         blocks from {} on",
        totals.external_fragmentation(),
        totals.internal_fragmentation(),
        bytes(cell),
        bytes(cell.saturating_mul(CELLS)),
        bytes(cell.saturating_mul(BOUNDED)),
    );
    text(&mut picture, MARGIN + CAPTION / 2 + CAPTION, &scale);
    let mut x = MARGIN;
    let legend = STATES.iter().map(|&(_, name, colour)| (name, colour)).chain([("unusable", UNUSABLE)]);
    for (name, colour) in legend {
        let y = MARGIN + 2 * CAPTION;
        let _ = writeln!(picture, "<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = writeln!(picture, "<text x=\"{}\" y=\"{}\">{name}</text>", x + 14, y + 9);
        x += 90;
    }
    picture + &body + "</svg>\n"
}

/// Returns the bytes per cell: the smallest power of two with which all regions that are drawn fit
/// into [`LINES`].
fn cell_size(runs: &[&[RegionMap]]) -> u64 {
    let lines = |cell: u64| {
        let of = |run: &&[RegionMap]| {
            run.first().map_or(0, |region| region.size.div_ceil(cell.saturating_mul(CELLS)))
        };
        runs.iter().map(of).fold(0, u64::saturating_add)
    };
    let mut cell = SMALLEST_CELL;
    while lines(cell) > LINES.max(runs.len() as u64) && cell < 1 << 62 {
        cell *= 2;
    }
    cell
}

/// Draws a ruler over the first line of a region, and returns the `y` below it.
fn ruler(body: &mut String, region: &RegionMap, cell: u64, y: u64) -> u64 {
    let cells = region.size.div_ceil(cell).min(CELLS);
    let y = y + CAPTION / 2;
    let mut path = format!("M{} {y}h{}", MARGIN + OFFSETS, cells * WIDTH);
    for mark in (0..=cells).step_by(MARK as usize) {
        let x = MARGIN + OFFSETS + mark * WIDTH;
        let _ = write!(path, "M{x} {y}v-4");
        let _ = writeln!(
            body,
            "<text x=\"{x}\" y=\"{}\" font-size=\"9\" text-anchor=\"middle\">{}</text>",
            y - 6,
            bytes(mark.saturating_mul(cell)),
        );
    }
    let _ = writeln!(body, "<path d=\"{path}\" stroke=\"#4a5568\" fill=\"none\"/>");
    y
}

/// Draws a region from `y` on, and returns the `y` of its end.
fn draw(body: &mut String, region: &RegionMap, cell: u64, mut y: u64) -> u64 {
    let cells = region.size.div_ceil(cell);
    let colours = colours(region, cell, cells);
    let line_size = cell.saturating_mul(CELLS);
    let lines = cells.div_ceil(CELLS);
    let mut line = 0;
    while line < lines {
        let offset = line.saturating_mul(line_size);
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{}\" font-size=\"9\" text-anchor=\"end\">+{}</text>",
            MARGIN + OFFSETS - 5,
            y + HEIGHT - 2,
            bytes(offset),
        );
        draw_cells(body, &colours, line * CELLS..cells.min((line + 1) * CELLS), y);
        draw_boundaries(body, region, offset..region.size.min(offset.saturating_add(line_size)), cell, y);
        y += HEIGHT;
        line += 1;
        let (end, content) = uniform(region, offset);
        // The lines that end before the content changes. The last line may be shorter.
        let equal = (end / line_size).min(lines).saturating_sub(line);
        if equal >= FOLDED - 1 {
            let to = line.saturating_add(equal).saturating_mul(line_size);
            let note = format!("{equal} more lines like this one, to +{}: {content}", bytes(to));
            let _ = writeln!(
                body,
                "<text x=\"{}\" y=\"{}\" font-size=\"9\" font-style=\"italic\">{note}</text>",
                MARGIN + OFFSETS,
                y + HEIGHT - 1,
            );
            y += HEIGHT + 3;
            line += equal;
        }
    }
    y
}

/// Returns the end of the piece, or of the range between two pieces, at an offset, and what is
/// there.
fn uniform(region: &RegionMap, offset: u64) -> (u64, String) {
    let next = region.pieces.partition_point(|piece| piece.offset <= offset);
    let end = |piece: &Piece| piece.offset.saturating_add(piece.size());
    if let Some(piece) = next.checked_sub(1).and_then(|index| region.pieces.get(index))
        && end(piece) > offset
    {
        let name = STATES.iter().find(|(state, ..)| *state == piece.state).map_or("", |(_, name, _)| name);
        let content = match piece.count {
            1 => format!("{name}, {}", bytes(piece.block_size)),
            count => format!("{name}, {count} blocks of {}", bytes(piece.block_size)),
        };
        return (end(piece), content);
    }
    (region.pieces.get(next).map_or(region.size, |piece| piece.offset), "unusable".to_owned())
}

/// Draws the cells of one line.
fn draw_cells(body: &mut String, colours: &impl Fn(u64) -> &'static str, cells: Range<u64>, y: u64) {
    let mut begin = cells.start;
    while begin < cells.end {
        // One rectangle per run of cells of one colour.
        let colour = colours(begin);
        let end = (begin + 1..cells.end).find(|&cell| colours(cell) != colour).unwrap_or(cells.end);
        let _ = writeln!(
            body,
            "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{colour}\"/>",
            MARGIN + OFFSETS + (begin - cells.start) * WIDTH,
            (end - begin) * WIDTH,
            HEIGHT - 1,
        );
        begin = end;
    }
}

/// Draws the boundaries of the blocks that begin in a line, which has these bytes of the region.
fn draw_boundaries(body: &mut String, region: &RegionMap, line: Range<u64>, cell: u64, y: u64) {
    let mut path = String::new();
    let end = |piece: &Piece| piece.offset.saturating_add(piece.size());
    let first = region.pieces.partition_point(|piece| end(piece) <= line.start);
    let pieces = region.pieces.iter().skip(first).take_while(|piece| piece.offset < line.end);
    for piece in pieces.filter(|piece| piece.block_size >= cell.saturating_mul(BOUNDED)) {
        let index = line.start.saturating_sub(piece.offset).div_ceil(piece.block_size);
        for index in index..piece.count {
            let begin = piece.offset.saturating_add(index.saturating_mul(piece.block_size));
            if begin >= line.end {
                break;
            }
            let x = (begin - line.start) as f64 / cell as f64 * WIDTH as f64;
            let _ = write!(path, "M{:.1} {y}v{}", (MARGIN + OFFSETS) as f64 + x, HEIGHT - 1);
        }
    }
    if !path.is_empty() {
        let _ = writeln!(body, "<path d=\"{path}\" stroke=\"#1a202c\" stroke-width=\"0.7\"/>");
    }
}

/// Returns a function from a cell to the colour of the state that most of its bytes have.
fn colours(region: &RegionMap, cell: u64, cells: u64) -> impl Fn(u64) -> &'static str {
    let mut shares = vec![[0_u64; STATES.len()]; usize::try_from(cells).unwrap_or(0)];
    for piece in &region.pieces {
        let Some(state) = STATES.iter().position(|&(state, ..)| state == piece.state) else { continue };
        let end = piece.offset.saturating_add(piece.size()).min(region.size);
        let mut at = piece.offset;
        while at < end {
            let next = (at / cell + 1).saturating_mul(cell).min(end);
            if let Some(share) = usize::try_from(at / cell).ok().and_then(|cell| shares.get_mut(cell)) {
                share[state] = share[state].saturating_add(next - at);
            }
            at = next;
        }
    }
    let size = region.size;
    move |index| {
        let known = usize::try_from(index).ok().and_then(|index| shares.get(index));
        let share = known.copied().unwrap_or_default();
        let all = cell.min(size.saturating_sub(index.saturating_mul(cell)));
        let unusable = all.saturating_sub(share.iter().fold(0, |sum: u64, part| sum.saturating_add(*part)));
        let most = (0..STATES.len()).max_by_key(|&state| (share[state], STATES.len() - state));
        most.filter(|&state| share[state] >= unusable).map_or(UNUSABLE, |state| STATES[state].2)
    }
}

fn text(body: &mut String, y: u64, text: &str) {
    let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{y}\">{text}</text>");
}

/// Escapes a pool's name for XML: it may contain any character.
fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for letter in name.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            // XML cannot represent control characters.
            letter if letter.is_control() => escaped.push('\u{fffd}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umf_core::Address;
    use umf_core::map::Piece;

    fn region(size: u64, pieces: Vec<Piece>) -> RegionMap {
        RegionMap { base: Address::from_bits(1 << 30), size, pieces }
    }

    #[test]
    fn cell_has_the_colour_of_its_most_common_state() {
        let piece = |offset, block_size, state| Piece { offset, block_size, count: 1, state };
        let pieces = vec![piece(0, 300, PieceState::Live), piece(300, 212, PieceState::Free)];
        let region = region(1000, pieces);
        let colours = colours(&region, 256, 4);
        assert_eq!([0, 1, 2, 3].map(colours), [STATES[0].2, STATES[4].2, UNUSABLE, UNUSABLE]);
    }

    #[test]
    fn picture_size_is_bounded() {
        let whole = Piece { offset: 0, block_size: 1 << 46, count: 1, state: PieceState::Live };
        let regions = vec![region(1 << 46, vec![whole])];
        let mut map = PoolMap { pool: "<p> & \u{1}".to_owned(), regions, ..PoolMap::default() };
        for number in 0..1000 {
            map.regions.push(region(4096 + number, Vec::new()));
        }
        let picture = to_svg(&map);
        assert!(picture.len() < 1 << 20, "{}", picture.len());
        assert!(
            picture.contains("pool &lt;p&gt; &amp; \u{fffd}:") && picture.contains("and 489 more regions")
        );
    }

    fn piece(offset: u64, block_size: u64, count: u64, state: PieceState) -> Piece {
        Piece { offset, block_size, count, state }
    }

    #[test]
    fn blocks_have_boundaries_and_lines_have_offsets() {
        let pieces =
            vec![piece(0, 8 << 10, 8, PieceState::Live), piece(64 << 10, 64, 1 << 10, PieceState::Cached)];
        let map = PoolMap { regions: vec![region(128 << 10, pieces)], ..PoolMap::default() };
        let picture = to_svg(&map);
        // A line of 64 KiB with 8 large blocks, and one whose blocks are smaller than a cell.
        let boundaries = picture.lines().filter(|line| line.contains("stroke-width=\"0.7\""));
        let boundaries: Vec<usize> = boundaries.map(|line| line.matches('M').count()).collect();
        assert_eq!(boundaries, [8], "{picture}");
        assert!(
            picture.contains(">+0 B<") && picture.contains(">+64 KiB<"),
            "the offsets of lines: {picture}"
        );
        for mark in [">0 B<", ">8 KiB<", ">32 KiB<", ">64 KiB<"] {
            assert!(picture.contains(mark), "{mark} of the ruler: {picture}");
        }
    }

    #[test]
    fn equal_regions_and_lines_are_folded() {
        let pieces =
            vec![piece(0, 4096, 256, PieceState::Live), piece(1 << 20, 1 << 20, 1, PieceState::Free)];
        let mut regions = vec![region(2 << 20, pieces); 12];
        regions.push(region(4096, Vec::new()));
        let picture = to_svg(&PoolMap { regions, ..PoolMap::default() });
        assert!(picture.contains("regions 0 to 11: 12 regions of 2 MiB with the same contents"), "{picture}");
        assert!(picture.contains(">region 12 at "), "{picture}");
        // 1 MiB has 16 lines.
        assert!(
            picture.contains("15 more lines like this one, to +1 MiB: live, 256 blocks of 4 KiB"),
            "{picture}"
        );
        assert!(picture.contains("15 more lines like this one, to +2 MiB: free, 1 MiB"), "{picture}");
        assert_eq!(picture.matches("font-size=\"9\" text-anchor=\"end\"").count(), 3, "{picture}");
    }
}
