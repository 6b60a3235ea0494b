//! What is asked of the node's own logs: of services, or of a file (`NodeLogQuery`).
//!
//! Source: `pkg/kubelet/kubelet_server_journal.go`, `kubelet_server_journal_linux.go`.

use std::num::IntErrorKind;

use jiff::Timestamp;
use serde_json::json;

use super::query::{Query, rfc3339};

const TAIL_LINES_MAX: i64 = 100_000;
const SERVICE_LENGTH_MAX: usize = 256;
const SERVICES_MAX: usize = 4;

/// A query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLogQuery {
    /// Services, in the order in which they were named.
    pub services: Vec<String>,
    /// What was named with a slash: files.
    pub files: Vec<String>,
    /// What of their logs.
    pub options: Options,
}

/// What of the logs of services is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Nothing from before.
    pub since: Option<Timestamp>,
    /// Nothing from later, with the words in which it was said.
    pub until: Option<(Timestamp, String)>,
    /// Only so many lines from the end.
    pub tail: Option<i64>,
    /// Of which boot: 0 is this one, -1 the one before.
    pub boot: Option<i64>,
    /// What is in each entry, as an expression that journalctl knows.
    pub pattern: String,
}

/// What is wrong with a query, in the words that clients know: one fault a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<String>);

impl Faults {
    /// All of them as one text. Source: `ToAggregate` of `k8s.io/apimachinery/pkg/util/validation/field`.
    #[must_use]
    pub fn text(&self) -> String {
        match self.0.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        }
    }

    fn add(&mut self, fault: String) {
        if !self.0.contains(&fault) {
            self.0.push(fault);
        }
    }

    fn invalid(&mut self, field: &str, value: impl Into<serde_json::Value>, why: &str) {
        let value: serde_json::Value = value.into();
        self.add(format!("{field}: Invalid value: {value}: {why}"));
    }

    fn none_or<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl NodeLogQuery {
    /// Reads a query; `None` when nothing of one is there: then a file of the path is meant.
    ///
    /// # Errors
    /// What cannot be read, for a 400.
    pub fn parse(query: &Query) -> Result<Option<Self>, Faults> {
        let mut faults = Faults::default();
        let named: Vec<&str> = query.all("query").collect();
        let (files, services): (Vec<&str>, Vec<&str>) =
            named.iter().filter(|name| !name.trim().is_empty()).partition(|name| name.contains(['/', '\\']));
        if !named.is_empty() && files.is_empty() && services.is_empty() {
            faults.invalid("query", json!(named), "may not be empty");
        }
        let mut time = |field| {
            let text = query.first(field).filter(|text| !text.is_empty())?;
            let time = rfc3339(text);
            if time.is_none() {
                faults.invalid(field, text, "invalid time format");
            }
            time.map(|time| (time, text.to_owned()))
        };
        let (since, until) = (time("sinceTime"), time("untilTime"));
        let mut number = |field| {
            let text = query.first(field).filter(|text| !text.is_empty())?;
            text.parse::<i64>()
                .map_err(|error| faults.invalid(field, text, &number_error(text, error.kind())))
                .ok()
        };
        let (boot, tail) = (number("boot"), number("tailLines"));
        let pattern = query.first("pattern").unwrap_or_default().to_owned();
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let options = Options { since: since.map(|(time, _)| time), until, tail, boot, pattern };
        let all = Self { services: owned(services), files: owned(files), options };
        let says_nothing =
            all.services.is_empty() && all.files.is_empty() && all.options == Options::default();
        faults.none_or((!says_nothing).then_some(all))
    }

    /// The file that is asked for, when the query asks for one and nothing else: whoever checks the query says what is wrong with it.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        match (self.files.as_slice(), self.services.is_empty(), self.options == Options::default()) {
            ([file], true, true) => Some(file),
            _ => None,
        }
    }

    /// Checks a query. `no_file` is what is wrong with its [`file`](Self::file).
    ///
    /// The pattern is left to journalctl, which knows other expressions than Go does.
    ///
    /// # Errors
    /// What is wrong with it, for a 406.
    pub fn check(&self, no_file: Option<&str>) -> Result<(), Faults> {
        let Self { services, files, options } = self;
        let mut faults = Faults::default();
        for service in services {
            if let Some(why) = unsafe_name(service) {
                faults.invalid("query", service.as_str(), why);
            }
        }
        if services.len() > SERVICES_MAX {
            let count = services.len();
            faults.add(format!("query: Too many: {count}: must have at most {SERVICES_MAX} items"));
        }
        match (files.as_slice(), services.as_slice()) {
            ([], []) => faults.add("query: Required value: cannot be empty with options".to_owned()),
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", files.join(" "), services.join(" "));
                faults.invalid("query", both, "cannot specify a file and service");
            }
            ([_, _, ..], []) => faults.invalid("query", json!(files), "cannot specify more than one file"),
            ([_], []) if *options != Options::default() => {
                faults.invalid("query", json!(files), "cannot specify file with options");
            }
            ([_], []) => {
                if let Some(why) = no_file {
                    faults.invalid("query", json!(files), why);
                }
            }
            ([], [_, ..]) => {}
        }
        if let (Some(since), Some((until, text))) = (options.since, &options.until)
            && since > *until
        {
            faults.invalid("untilTime", text.as_str(), "must be after `sinceTime`");
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            faults.invalid("boot", boot, "must be less than 1");
        }
        if let Some(tail) = options.tail.filter(|tail| !(0..=TAIL_LINES_MAX).contains(tail)) {
            faults.invalid("tailLines", tail, &format!("must be between 0 and {TAIL_LINES_MAX}, inclusive"));
        }
        faults.none_or(())
    }

    /// Arguments with which journalctl shows entries of these services.
    ///
    /// Times are seconds since 1970: the kubelet writes the clock of the zone in which they were asked for, and journalctl
    /// reads that in the zone of the node.
    #[must_use]
    pub fn journal_arguments(&self, services: &[String]) -> Vec<String> {
        let Options { since, until, tail, boot, pattern } = &self.options;
        let mut arguments: Vec<String> =
            ["--utc", "--no-pager", "--output=short-precise"].map(str::to_owned).to_vec();
        arguments.extend(since.map(|since| format!("--since=@{}", since.as_second())));
        arguments.extend(until.as_ref().map(|(until, _)| format!("--until=@{}", until.as_second())));
        if let Some(tail) = tail {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={tail}")]);
        }
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        if !pattern.is_empty() {
            arguments.push(format!("--grep={pattern}"));
        }
        if let Some(boot) = boot {
            arguments.extend(["--boot".to_owned(), boot.to_string()]);
        }
        arguments
    }
}

/// Arguments with which journalctl names all units that it knows.
pub const UNITS: [&str; 2] = ["--field", "_SYSTEMD_UNIT"];

/// Whether journalctl has entries of a service, by its [`UNITS`].
#[must_use]
pub fn is_in_journal(units: &str, service: &str) -> bool {
    units.contains(&format!("{service}.service"))
}

/// Where below the log directory a service may write its log, the likeliest first.
#[must_use]
pub fn files_of(service: &str) -> [String; 3] {
    [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")]
}

/// What is said when services that write files were asked for with options.
#[must_use]
pub fn options_with_files(services: &[String]) -> String {
    let services = services.join(" ");
    format!(
        "\noptions present and query resolved to log files for [{services}]\ntry without specifying options\n"
    )
}

/// What is said of a service of which no log is found.
#[must_use]
pub fn not_found(service: &str) -> String {
    format!("\nlog not found for {service}\n")
}

fn unsafe_name(service: &str) -> Option<&'static str> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    if service.len() > SERVICE_LENGTH_MAX {
        return Some("length must be less than 256");
    }
    (!service.bytes().all(is_safe)).then_some("input contains unsupported characters")
}

fn number_error(text: &str, kind: &IntErrorKind) -> String {
    let is_too_large = matches!(kind, IntErrorKind::PosOverflow | IntErrorKind::NegOverflow);
    let why = if is_too_large { "value out of range" } else { "invalid syntax" };
    format!("strconv.Atoi: parsing {text:?}: {why}")
}

#[cfg(test)]
mod tests;
