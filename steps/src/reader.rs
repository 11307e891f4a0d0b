//! Reads the output of one rank and tells the step that it has reached.

use std::time::Duration;

use regex_lite::{Regex, RegexBuilder};

use crate::{
    bar::{self, Bar, Name},
    loss, rate,
    scan::{self, Scan},
    table::{Look, Table, TableError},
    template::{Numbers, decimal},
    word::{self, Counted},
};

/// How many bytes of a line are searched. Progress stands at the front, and the bound limits the
/// work per line. A bar of 240 cells has 720 bytes.
const LOOK: usize = 1024;
/// The same for a job's own pattern, which costs more.
const LOOK_OWN: usize = 512;

/// How many lines per [`WINDOW`] and rank a job's own pattern is tried on. 2,000 lines/s x 512 bytes
/// is about 1 MiB/s for regex-lite, a few per cent of a core even under a flood.
const PATTERN_LINES: u32 = 200;
const WINDOW: Duration = Duration::from_millis(100);

/// A bar without a name, and without other signs of training, counts once it has run this long and
/// was redrawn this often. Most bars of data preparation are over by then, or have a name.
const PRESUMED_AFTER: u64 = 10;
const PRESUMED_REDRAWN: u32 = 3;

/// How many bars without a name are remembered: one of training, one of validation, and some more.
const UNNAMED_MAX: usize = 4;

/// The rank of a bar without a name: every other format takes precedence.
const UNNAMED: usize = usize::MAX;

/// A step, as one line showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub count: u64,
    /// The step at which training ends.
    pub total: Option<u64>,
    /// The newest loss, as it was printed.
    pub loss: Option<String>,
    /// The newest speed, as it was printed, with its unit: `9.84 it/s`.
    pub rate: Option<String>,
    /// The name of the format that found the step.
    pub format: String,
}

/// How lines are searched. All ranks share one.
#[derive(Clone, Debug)]
pub struct Formats {
    own: Option<Box<Regex>>,
    table: Table,
    ranks: Vec<usize>,
    scan: Scan,
}

/// Bytes of a job's own pattern when it is compiled. A job with a larger one is not accepted; those
/// that were accepted before there was a bound go on without steps.
pub const COMPILED_MAX: usize = 32 << 10;

/// A pattern of a job that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("{0}")]
    Wrong(String),
    #[error("the pattern is too large: compiled it has more than {} KiB", COMPILED_MAX >> 10)]
    TooLarge,
}

impl Formats {
    pub fn standard() -> Self {
        Self::of(Table::standard())
    }

    /// The standard formats behind an operator's own.
    pub fn with(operator: &str) -> Result<Self, TableError> {
        Ok(Self::of(Table::standard().overridden(operator)?))
    }

    /// A job's own regular expression in place of the table. Its first group is the step, unless
    /// groups have names: `step`, `total`, `loss`, `rate`, or `epoch`, `batch` and `batches`.
    pub fn own(pattern: &str) -> Result<Self, PatternError> {
        let compiled = RegexBuilder::new(pattern).size_limit(COMPILED_MAX).build();
        let regex = compiled.map_err(|e| match e.to_string() {
            text if text.contains("size limit") => PatternError::TooLarge,
            text => PatternError::Wrong(text),
        })?;
        if regex.captures_len() < 2 {
            return Err(PatternError::Wrong(
                "the pattern has no capture group".into(),
            ));
        }
        Ok(Self {
            own: Some(Box::new(regex)),
            ..Self::standard()
        })
    }

    /// Whether it is a job's own pattern, which may cost far more than the table.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    fn of(table: Table) -> Self {
        Self {
            own: None,
            scan: Scan::new(&table),
            ranks: table.ranks(),
            table,
        }
    }
}

/// The count that takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    /// The place of the format's program in the table, or [`UNNAMED`].
    rank: usize,
    /// Tells two bars of one format apart.
    key: u64,
    /// Nothing but its pace says that it counts steps.
    presumed: bool,
}

/// A bar without a name.
#[derive(Clone, Copy, Debug)]
struct Unnamed {
    total: u64,
    done: u64,
    redrawn: u32,
    /// How often it has reached its end.
    ended: u64,
}

#[derive(Clone, Copy, Debug)]
struct Heading {
    epoch: u64,
    from_one: bool,
    epochs: Option<u64>,
    over: bool,
}

/// Where a count stood.
#[derive(Clone, Copy, Debug)]
struct Place {
    done: u64,
    total: Option<u64>,
    epoch: Option<u64>,
}

/// The state of one rank's output.
#[derive(Debug, Default)]
pub struct Reader {
    source: Option<Source>,
    /// Steps of counts that began anew.
    base: u64,
    last: Option<Place>,
    heading: Option<Heading>,
    /// The epochs of a format that counts from 1 began with 0.
    from_zero: bool,
    unnamed: Vec<Unnamed>,
    /// The output has shown a loss.
    trains: bool,
    loss: Option<String>,
    rate: Option<String>,
    window: Duration,
    tried: u32,
}

impl Reader {
    pub fn new() -> Self {
        Self::default()
    }

    /// The step that `line` shows. `now` counts from any moment; a job's own pattern is tried only
    /// so often in a time.
    pub fn look(&mut self, formats: &Formats, line: &[u8], now: Duration) -> Option<Step> {
        let line = &line[..line.len().min(LOOK)];
        if let Some(regex) = &formats.own {
            return self.look_own(regex, &line[..line.len().min(LOOK_OWN)], now);
        }
        let seen = formats.scan.look(line);
        if seen == 0 {
            return None;
        }
        if Scan::is_plain(seen) {
            return self.find(formats, line, seen);
        }
        let plain = scan::without_escapes(line)?;
        let seen = formats.scan.look(&plain);
        self.find(formats, &plain, seen)
    }

    fn look_own(&mut self, regex: &Regex, line: &[u8], now: Duration) -> Option<Step> {
        if now.saturating_sub(self.window) >= WINDOW {
            (self.window, self.tried) = (now, 0);
        }
        self.tried += 1;
        if self.tried > PATTERN_LINES {
            return None;
        }
        let text = String::from_utf8_lossy(line);
        let found = regex.captures(&text)?;
        let number = |name| found.name(name)?.as_str().parse().ok();
        let numbers = Numbers {
            step: number("step"),
            total: number("total"),
            epoch: number("epoch"),
            from_one: false,
            epochs: number("epochs"),
            batch: number("batch"),
            batches: number("batches"),
        };
        let loss = found.name("loss").map(|loss| loss.as_str().as_bytes());
        if let Some(loss) =
            loss.filter(|text| text.len() <= loss::LOSS_MAX && decimal(text) == Some(text.len()))
        {
            self.loss = std::str::from_utf8(loss).ok().map(str::to_owned);
        }
        let named = regex.capture_names().flatten().next().is_some();
        let (count, total) = if named {
            self.count(numbers)?
        } else {
            (found.get(1)?.as_str().parse().ok()?, None)
        };
        if let Some(rate) = found.name("rate").map(|rate| rate.as_str())
            && rate.len() <= rate::RATE_MAX
            && !rate.contains(char::is_control)
        {
            self.rate = Some(rate.to_owned());
        }
        Some(self.step("stepPattern", count, total))
    }

    fn find(&mut self, formats: &Formats, line: &[u8], seen: scan::Seen) -> Option<Step> {
        if seen >> scan::LOSS & 1 == 1
            && let Some(loss) = loss::find(line)
        {
            (self.trains, self.loss) = (true, Some(loss.to_owned()));
        }
        let table = &formats.table;
        for (at, format) in table.formats.iter().enumerate() {
            if seen & formats.scan.needs[at] == 0 {
                continue;
            }
            let rank = formats.ranks[at];
            let (count, total) = match &format.look {
                Look::Template(template) => {
                    let Some((at, numbers)) = template.find(line) else {
                        continue;
                    };
                    if word::ignored(table, &line[..at]) {
                        return None;
                    }
                    if numbers.step.is_none() && numbers.batch.is_none() {
                        self.head(numbers);
                        return None;
                    }
                    if numbers.is_open() {
                        if !self.accept(rank, 0, false) {
                            return None;
                        }
                        self.count(numbers)?
                    } else {
                        let counted = self.count(numbers)?;
                        if !self.accept(rank, 0, false) {
                            return None;
                        }
                        counted
                    }
                }
                Look::Bar | Look::Rule => {
                    let bar = match format.look {
                        Look::Bar => bar::tqdm(table, line),
                        _ => bar::ruled(table, line),
                    };
                    let Some(bar) = bar else { continue };
                    self.bar(rank, bar)?
                }
                Look::Word => {
                    let Some(counted) = word::find(table, line) else {
                        continue;
                    };
                    if !self.accept(rank, 0, false) {
                        return None;
                    }
                    self.word(counted)
                }
                Look::Off => continue,
            };
            if let Some(rate) = rate::find(&table.rates, line) {
                self.rate = Some(rate);
            }
            return Some(self.step(&format.name, count, total));
        }
        None
    }

    fn step(&self, format: &str, count: u64, total: Option<u64>) -> Step {
        Step {
            count,
            total: total.filter(|total| *total >= count),
            loss: self.loss.clone(),
            rate: self.rate.clone(),
            format: format.to_owned(),
        }
    }

    /// Whether this count takes precedence. A format further up in the table takes it over for good.
    fn accept(&mut self, rank: usize, key: u64, presumed: bool) -> bool {
        let new = Source {
            rank,
            key,
            presumed,
        };
        match self.source {
            Some(old) if (old.rank, old.key) == (rank, key) => {
                self.source = Some(Source {
                    presumed: old.presumed && presumed,
                    ..old
                });
                return true;
            }
            Some(old) if old.rank < rank => return false,
            Some(old) if old.rank == rank => {
                let ended = self.last.is_some_and(|last| last.total == Some(last.done));
                if rank == UNNAMED {
                    // The second bar is mostly one of validation.
                    if !(old.presumed && (ended || !presumed)) {
                        return false;
                    }
                    (self.base, self.last) = (0, None);
                } else if !ended {
                    return false;
                }
            }
            _ => (self.base, self.last) = (0, None),
        }
        self.source = Some(new);
        true
    }

    /// The place in all epochs.
    fn count(&mut self, numbers: Numbers) -> Option<(u64, Option<u64>)> {
        if let Some(step) = numbers.step {
            return Some((step, numbers.total));
        }
        if numbers.is_open() {
            return Some((self.in_open_epoch(numbers.epoch?, numbers.batch?), None));
        }
        let (batch, batches) = (numbers.batch?, numbers.batches?);
        if batch > batches {
            return None;
        }
        let (epoch, from_one, epochs) = match numbers.epoch {
            Some(epoch) => (epoch, numbers.from_one, numbers.epochs),
            None => {
                // A count without an epoch is one of training below a heading, and below no other:
                // the same program prints the like when it evaluates.
                let heading = self.heading.as_mut().filter(|heading| !heading.over)?;
                heading.over = batch == batches;
                (heading.epoch, heading.from_one, heading.epochs)
            }
        };
        self.in_epoch(epoch, from_one, epochs, batch, batches)
    }

    fn in_epoch(
        &mut self,
        epoch: u64,
        from_one: bool,
        epochs: Option<u64>,
        batch: u64,
        batches: u64,
    ) -> Option<(u64, Option<u64>)> {
        self.from_zero |= from_one && epoch == 0;
        let before = epoch - u64::from(from_one && !self.from_zero);
        let count = before.checked_mul(batches)?.checked_add(batch)?;
        let total = epochs.and_then(|epochs| epochs.checked_mul(batches));
        Some((count, total))
    }

    /// The place where nothing says how many batches an epoch has: those of the epochs before are as
    /// many as were seen.
    fn in_open_epoch(&mut self, epoch: u64, batch: u64) -> u64 {
        if let Some(last) = self.last
            && Some(epoch) > last.epoch
        {
            self.base = self.base.saturating_add(last.done);
        }
        self.last = Some(Place {
            done: batch,
            total: None,
            epoch: Some(epoch),
        });
        self.base.saturating_add(batch)
    }

    fn head(&mut self, numbers: Numbers) {
        if let Some(epoch) = numbers.epoch
            && numbers.epochs.is_none_or(|epochs| epoch <= epochs)
        {
            self.from_zero |= epoch == 0;
            self.heading = Some(Heading {
                epoch,
                from_one: numbers.from_one,
                epochs: numbers.epochs,
                over: false,
            });
        }
    }

    fn bar(&mut self, rank: usize, bar: Bar) -> Option<(u64, Option<u64>)> {
        match bar.name {
            Name::Unknown(_) => None,
            Name::None => self.unnamed(bar),
            // The first state of a bar says that nothing is done.
            Name::Counts(_) | Name::Epoch { .. } if bar.done == 0 => None,
            Name::Epoch {
                name,
                epoch,
                from_one,
                epochs,
            } => {
                if !self.accept(rank, key(name), false) {
                    return None;
                }
                self.last = Some(Place {
                    done: bar.done,
                    total: Some(bar.total),
                    epoch: Some(epoch),
                });
                self.in_epoch(epoch, from_one, epochs, bar.done, bar.total)
            }
            Name::Counts(name) => {
                if !self.accept(rank, key(name), false) {
                    return None;
                }
                Some(self.on(bar.done, Some(bar.total), None, true))
            }
        }
    }

    /// A bar without a name counts if something else says that it is one of training.
    fn unnamed(&mut self, bar: Bar) -> Option<(u64, Option<u64>)> {
        let known = self.unnamed.iter().position(|one| one.total == bar.total);
        let at = known.unwrap_or_else(|| {
            if self.unnamed.len() == UNNAMED_MAX {
                self.unnamed.remove(0);
            }
            self.unnamed.push(Unnamed {
                total: bar.total,
                done: 0,
                redrawn: 0,
                ended: 0,
            });
            self.unnamed.len() - 1
        });
        let one = &mut self.unnamed[at];
        if bar.done != one.done {
            one.redrawn = if bar.done < one.done { 0 } else { one.redrawn } + 1;
            one.ended += u64::from(bar.done == bar.total);
            one.done = bar.done;
        }
        let one = *one;
        if bar.done == 0 {
            return None;
        }
        let ended_before = one.ended - u64::from(bar.done == bar.total);
        let sure = bar.has_loss || self.trains || ended_before > 0;
        let presumed = bar.slow
            && bar.ran.is_some_and(|ran| ran >= PRESUMED_AFTER)
            && one.redrawn >= PRESUMED_REDRAWN;
        if !(sure || presumed) || !self.accept(UNNAMED, bar.total, !sure) {
            return None;
        }
        let count = ended_before.checked_mul(bar.total)?.checked_add(bar.done)?;
        self.last = Some(Place {
            done: bar.done,
            total: Some(bar.total),
            epoch: None,
        });
        Some((count, (ended_before == 0).then_some(bar.total)))
    }

    fn word(&mut self, counted: Counted) -> (u64, Option<u64>) {
        self.on(counted.step, counted.total, counted.epoch, false)
    }

    /// Counts on where a count begins anew: with the next epoch, or after it has reached its end.
    /// Otherwise a smaller count is one: the program went back to a checkpoint.
    fn on(
        &mut self,
        done: u64,
        total: Option<u64>,
        epoch: Option<u64>,
        is_bar: bool,
    ) -> (u64, Option<u64>) {
        if let Some(last) = self.last.filter(|last| done < last.done) {
            let ended = last.total == Some(last.done);
            let next_epoch = epoch.is_some() && epoch > last.epoch;
            if ended || next_epoch || is_bar && done <= 1 {
                let all = last.total.filter(|_| next_epoch);
                self.base = self.base.saturating_add(all.unwrap_or(last.done));
            }
        }
        self.last = Some(Place { done, total, epoch });
        let total = total.filter(|_| self.base == 0);
        (self.base.saturating_add(done), total)
    }
}

/// What stays of a bar's name while it runs: the letters at its beginning.
fn key(name: &[u8]) -> u64 {
    let letters = name.iter().take(16).filter(|b| b.is_ascii_alphabetic());
    let hash =
        |sum: u64, b: &u8| (sum ^ u64::from(b.to_ascii_lowercase())).wrapping_mul(0x100_0000_01b3);
    letters.fold(0xcbf2_9ce4_8422_2325, hash)
}
