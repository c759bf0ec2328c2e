//! Half round trips by size, as a picture.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 480.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 5] = ["#2b6cb0", "#2f855a", "#c05621", "#97266d", "#4a5568"];

/// A curve for each engine: bytes and nanoseconds. Both axes are logarithmic.
pub(super) fn to_svg(curves: &[(&str, Vec<(usize, f64)>)]) -> String {
    let points = || curves.iter().flat_map(|(_, curve)| curve);
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value);
            high = high.max(value);
        }
        (low, if high > low { high } else { low + 1.0 })
    };
    let logs = |value: f64| value.max(1.0).log10();
    let across = bounds(&mut points().map(|point| logs(point.0 as f64)));
    let up = bounds(&mut points().map(|point| logs(point.1)));
    let x = |bytes: f64| MARGIN + (logs(bytes) - across.0) / (across.1 - across.0) * (WIDTH - 2.0 * MARGIN);
    let y = |time: f64| HEIGHT - MARGIN - (logs(time) - up.0) / (up.1 - up.0) * (HEIGHT - 2.0 * MARGIN);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\">half round trip (us) of data that was just written, by size</text>\n"
    );
    let mut line = |[x1, y1, x2, y2]: [f64; 4], label: &str, at: (f64, f64)| {
        let _ = writeln!(
            picture,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#e2e8f0\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            at.0, at.1
        );
    };
    if points().next().is_some() {
        for power in 10..40 {
            let bytes = f64::from(power).exp2();
            if (across.0..=across.1).contains(&logs(bytes)) && power % 2 == 0 {
                let label = if power < 20 {
                    format!("{} KiB", 1 << (power - 10))
                } else {
                    format!("{} MiB", 1 << (power - 20))
                };
                line(
                    [x(bytes), MARGIN, x(bytes), HEIGHT - MARGIN],
                    &label,
                    (x(bytes) - 16.0, HEIGHT - MARGIN + 16.0),
                );
            }
        }
        for power in 0..10 {
            let time = 10_f64.powi(power);
            if (up.0..=up.1).contains(&logs(time)) {
                line(
                    [MARGIN, y(time), WIDTH - MARGIN, y(time)],
                    &format!("{}", time / 1e3),
                    (12.0, y(time) + 4.0),
                );
            }
        }
    }
    for ((name, curve), colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let path: Vec<String> =
            curve.iter().map(|(bytes, time)| format!("{:.1},{:.1}", x(*bytes as f64), y(*time))).collect();
        let _ = writeln!(
            picture,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        if let Some((bytes, time)) = curve.last() {
            let (x, y) = (x(*bytes as f64) + 6.0, y(*time) + 4.0);
            let _ = writeln!(picture, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name}</text>");
        }
    }
    picture + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_stay_in_the_picture() {
        let curves = [("one", vec![(1024, 100.0), (1 << 24, 2e6)]), ("other", vec![(4096, 5.0)])];
        let picture = to_svg(&curves);
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert!(picture.contains("1 MiB") && picture.contains(">one<"));
        let numbers = picture.split("points=\"").skip(1).flat_map(|rest| {
            rest.split('"').next().unwrap().split([' ', ',']).map(|text| text.parse::<f64>().unwrap())
        });
        assert!(numbers.into_iter().all(|number| (0.0..=WIDTH).contains(&number)));
        assert!(to_svg(&[]).ends_with("</svg>\n") && to_svg(&[("none", Vec::new())]).contains("polyline"));
    }
}
