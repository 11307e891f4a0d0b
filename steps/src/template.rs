//! One template of the table: the text of a line with places for numbers. It is matched from left
//! to right without going back, so the cost of a line is bounded by its length.

/// A place for a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Step,
    Total,
    Epoch,
    EpochFromOne,
    Epochs,
    Batch,
    Batches,
    Samples,
    Of,
    Any,
}

const FIELDS: [(&str, Field); 10] = [
    ("step", Field::Step),
    ("total", Field::Total),
    ("epoch", Field::Epoch),
    ("epoch1", Field::EpochFromOne),
    ("epochs", Field::Epochs),
    ("batch", Field::Batch),
    ("batches", Field::Batches),
    ("samples", Field::Samples),
    ("of", Field::Of),
    ("n", Field::Any),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// In lower case, without blanks.
    Text(Vec<u8>),
    Blanks,
    Number(Field),
    Anything,
    End,
}

/// The numbers that a line showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) step: Option<u64>,
    pub(crate) total: Option<u64>,
    pub(crate) epoch: Option<u64>,
    /// The epoch counts from 1.
    pub(crate) from_one: bool,
    pub(crate) epochs: Option<u64>,
    pub(crate) batch: Option<u64>,
    pub(crate) batches: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<Part>,
    at_begin: bool,
    /// Four bytes that every line of this form has, in lower case.
    pub(crate) anchor: u32,
}

/// How many places of one line a template is tried at. A line of a training program has one or two.
const PLACES: usize = 8;

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (at_begin, text) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (at_end, text) = match text.strip_suffix('$') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if c == '{' {
                let end = rest.find('}').ok_or("a { has no }")?;
                let name = &rest[1..end];
                let known = FIELDS.iter().find(|(known, _)| *known == name);
                let (_, field) = known.ok_or_else(|| {
                    let names: Vec<_> = FIELDS.iter().map(|(name, _)| *name).collect();
                    format!("{{{name}}} is none of {}", names.join(", "))
                })?;
                parts.push(Part::Number(*field));
                rest = &rest[end + 1..];
                continue;
            }
            match c {
                '*' => parts.push(Part::Anything),
                ' ' | '\t' if parts.last() == Some(&Part::Blanks) => {}
                ' ' | '\t' => parts.push(Part::Blanks),
                _ => {
                    let mut bytes = [0; 4];
                    let bytes = c.encode_utf8(&mut bytes).as_bytes().to_ascii_lowercase();
                    match parts.last_mut() {
                        Some(Part::Text(text)) => text.extend(bytes),
                        _ => parts.push(Part::Text(bytes)),
                    }
                }
            }
            rest = &rest[c.len_utf8()..];
        }
        if at_end {
            parts.extend([Part::Blanks, Part::End]);
        }
        let has = |fields: &[Field]| {
            let place = |part: &Part| matches!(part, Part::Number(f) if fields.contains(f));
            parts.iter().any(place)
        };
        if !has(&[
            Field::Step,
            Field::Batch,
            Field::Samples,
            Field::Epoch,
            Field::EpochFromOne,
        ]) {
            return Err("it has none of {step}, {batch}, {samples}, {epoch}, {epoch1}".into());
        }
        if !at_begin && !matches!(parts.first(), Some(Part::Text(_))) {
            return Err("it must begin with text or with ^".into());
        }
        let text = |part: &Part| match part {
            Part::Text(text) => Some(text.clone()),
            _ => None,
        };
        let longest = parts.iter().filter_map(text).max_by_key(Vec::len);
        let anchor = longest.as_deref().and_then(<[u8]>::first_chunk::<4>);
        let anchor = anchor.ok_or("it needs a piece of text of at least four bytes")?;
        Ok(Self {
            anchor: u32::from_be_bytes(*anchor),
            parts,
            at_begin,
        })
    }

    /// The numbers in `line`, and where the match begins.
    pub(crate) fn find(&self, line: &[u8]) -> Option<(usize, Numbers)> {
        if self.at_begin {
            let begin = blanks(line);
            return Some((begin, self.at(&line[begin..])?));
        }
        let Some(Part::Text(first)) = self.parts.first() else {
            return None;
        };
        let mut from = 0;
        for _ in 0..PLACES {
            let begin = from + find_text(&line[from..], first)?;
            let whole = begin == 0
                || !first[0].is_ascii_alphanumeric()
                || !(line[begin - 1].is_ascii_alphanumeric() || line[begin - 1] == b'_');
            if whole && let Some(numbers) = self.at(&line[begin..]) {
                return Some((begin, numbers));
            }
            from = begin + 1;
        }
        None
    }

    fn at(&self, mut line: &[u8]) -> Option<Numbers> {
        let mut numbers = Numbers::default();
        let mut skip = false;
        for part in &self.parts {
            match part {
                Part::Text(text) if skip => {
                    line = &line[find_text(line, text)? + text.len()..];
                }
                Part::Text(text) => {
                    let head = line.get(..text.len())?;
                    if !head.eq_ignore_ascii_case(text) {
                        return None;
                    }
                    line = &line[text.len()..];
                }
                Part::Blanks => {
                    if !skip {
                        line = &line[blanks(line)..];
                    }
                    continue;
                }
                Part::Anything => {
                    skip = true;
                    continue;
                }
                Part::End if skip || line.is_empty() => {}
                Part::End => return None,
                Part::Number(Field::Any) => line = &line[decimal(line)?..],
                Part::Number(field) => {
                    let (value, length) = whole_number(line)?;
                    numbers.take(*field, value);
                    line = &line[length..];
                }
            }
            skip = false;
        }
        Some(numbers)
    }
}

impl Numbers {
    /// An epoch and a batch of it, and nothing that says how many batches there are.
    pub(crate) fn is_open(&self) -> bool {
        self.step.is_none()
            && self.batches.is_none()
            && self.batch.is_some()
            && self.epoch.is_some()
    }

    fn take(&mut self, field: Field, value: u64) {
        let place = match field {
            Field::Step => &mut self.step,
            Field::Total => &mut self.total,
            Field::Epoch => &mut self.epoch,
            Field::EpochFromOne => {
                self.from_one = true;
                &mut self.epoch
            }
            Field::Epochs => &mut self.epochs,
            Field::Batch | Field::Samples => &mut self.batch,
            Field::Batches | Field::Of => &mut self.batches,
            Field::Any => return,
        };
        *place = Some(value);
    }
}

pub(crate) fn find_text(line: &[u8], text: &[u8]) -> Option<usize> {
    let same = |window: &[u8]| window.eq_ignore_ascii_case(text);
    line.windows(text.len()).position(same)
}

fn blanks(line: &[u8]) -> usize {
    line.iter()
        .take_while(|b| matches!(b, b' ' | b'\t'))
        .count()
}

/// A whole number at the start, and its length. `0.5` and `1e-3` are none; `12.` at the end of a
/// sentence is one.
pub(crate) fn whole_number(text: &[u8]) -> Option<(u64, usize)> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    match text.get(digits..digits + 2) {
        Some([b'.', d]) if d.is_ascii_digit() => return None,
        Some([b'e' | b'E', d]) if d.is_ascii_digit() || matches!(d, b'-' | b'+') => return None,
        _ => {}
    }
    let value = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    Some((value, digits))
}

/// The length of a number at the start, also of `-1.5e-3` and `nan`.
pub(crate) fn decimal(text: &[u8]) -> Option<usize> {
    let sign = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    for word in [&b"nan"[..], b"inf"] {
        let head = text.get(sign..sign + 3).unwrap_or_default();
        if head.eq_ignore_ascii_case(word) {
            return Some(sign + 3);
        }
    }
    let run = |from: usize| {
        text[from..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let mut end = sign + run(sign);
    if end == sign {
        return None;
    }
    if text.get(end) == Some(&b'.') && text.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end += 1 + run(end + 1);
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'-' | b'+')));
        let digits = text
            .get(end + 1 + sign..)
            .map_or(0, |_| run(end + 1 + sign));
        if digits > 0 {
            end += 1 + sign + digits;
        }
    }
    Some(end)
}
