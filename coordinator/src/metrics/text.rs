//! The text format of Prometheus, version 0.0.4, which every scraper reads.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::fmt::Write;

use super::catalogue::{FAMILIES, Family, Kind};

/// The content type of the format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One answer to a scrape, as it is written: the samples of each family, in the order of the catalogue.
pub(crate) struct Page {
    samples: Vec<String>,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self {
            samples: vec![String::new(); FAMILIES.len()],
        }
    }

    /// Adds one sample. `labels`: a value for each label of the family, in its order.
    pub(crate) fn put(&mut self, family: Family, labels: &[&str], value: impl Into<Number>) {
        self.line(family, "", labels, None, value.into());
    }

    /// Adds a histogram.
    pub(crate) fn put_histogram(&mut self, family: Family, labels: &[&str], of: &Histogram) {
        let mut below = 0;
        for (bound, count) in of.bounds.iter().zip(&of.counts) {
            below += count;
            let bound = Number::from(*bound).to_string();
            self.line(family, "_bucket", labels, Some(&bound), below.into());
        }
        self.line(family, "_bucket", labels, Some("+Inf"), of.count.into());
        self.line(family, "_sum", labels, None, of.sum.into());
        self.line(family, "_count", labels, None, of.count.into());
    }

    fn line(
        &mut self,
        family: Family,
        suffix: &str,
        labels: &[&str],
        bound: Option<&str>,
        value: Number,
    ) {
        let described = family.described();
        debug_assert_eq!(labels.len(), described.labels.len(), "{}", described.name);
        let out = &mut self.samples[family as usize];
        out.push_str(described.name);
        out.push_str(suffix);
        let named = described.labels.iter().copied().zip(labels.iter().copied());
        for (index, (name, value)) in named.chain(bound.map(|le| ("le", le))).enumerate() {
            out.push(if index == 0 { '{' } else { ',' });
            out.push_str(name);
            out.push_str("=\"");
            escape(value, out);
            out.push('"');
        }
        if !(labels.is_empty() && bound.is_none()) {
            out.push('}');
        }
        // A String takes all that is written.
        let _ = writeln!(out, " {value}");
    }

    /// The whole text. A family without samples is left out.
    pub(crate) fn text(self) -> String {
        let mut text = String::new();
        for (described, samples) in FAMILIES.iter().zip(self.samples) {
            if samples.is_empty() {
                continue;
            }
            let kind = match described.kind {
                Kind::Gauge => "gauge",
                Kind::Counter => "counter",
                Kind::Histogram => "histogram",
            };
            let name = described.name;
            let help = described.help.replace('\\', "\\\\");
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}"
            );
        }
        text
    }
}

/// The characters that end a label's value, or its line, are written with a backslash.
fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Number::Whole(number)
    }
}

impl From<u32> for Number {
    fn from(number: u32) -> Self {
        Number::Whole(number.into())
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Number::Whole(number as u64)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Number::Real(number)
    }
}

impl From<std::time::Duration> for Number {
    fn from(time: std::time::Duration) -> Self {
        Number::Real(time.as_secs_f64())
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Whole(number) => write!(f, "{number}"),
            Number::Real(number) => write!(f, "{number}"),
        }
    }
}

/// How often something took how long.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// For each bound, those that are not above it and above the one before.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len()],
            count: 0,
            sum: 0.0,
        }
    }

    pub(crate) fn observe(&mut self, time: std::time::Duration) {
        let seconds = time.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        if let Some(at) = self.bounds.iter().position(|bound| seconds <= *bound) {
            self.counts[at] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn text_is_written_as_the_format_says() {
        let mut page = Page::new();
        page.put(Family::Jobs, &["a\"b\\c\nd", "Running"], 3_u64);
        page.put(Family::MassLoss, &[], 1_u64);
        let mut histogram = Histogram::new(&[0.01, 0.1]);
        for ms in [5, 10, 50, 500] {
            histogram.observe(Duration::from_millis(ms));
        }
        page.put_histogram(Family::TurnSeconds, &["think"], &histogram);
        let text = page.text();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"muster_jobs{job_namespace="a\"b\\c\nd",phase="Running"} 3"#,
                "muster_mass_loss 1",
                r#"muster_turn_seconds_bucket{part="think",le="0.01"} 2"#,
                r#"muster_turn_seconds_bucket{part="think",le="0.1"} 3"#,
                r#"muster_turn_seconds_bucket{part="think",le="+Inf"} 4"#,
                r#"muster_turn_seconds_sum{part="think"} 0.565"#,
                r#"muster_turn_seconds_count{part="think"} 4"#,
            ]
        );
        assert!(text.starts_with("# HELP muster_jobs "), "{text}");
        assert_eq!(
            text.matches("# TYPE ").count(),
            3,
            "the others have no sample"
        );
    }
}
