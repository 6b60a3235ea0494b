//! What is told of a run: a table of the differences that nothing explains, by their shape, and how often each explanation was needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use serde_json::{Value, json};

use super::explained::{EXPLAINED, of};
use super::play::{Finding, Phase};

/// How many characters of a value are shown.
const SHOWN: usize = 400;
/// How many cases are named.
const NAMED: usize = 4;

/// What differs in the same way, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    phase: Phase,
    path: String,
    ours: String,
    theirs: String,
}

/// All of a run.
#[derive(Debug, Default)]
pub struct Report {
    cases: usize,
    findings: Vec<Finding>,
}

impl Report {
    /// Adds what was found in so many cases.
    pub fn add(&mut self, cases: usize, findings: Vec<Finding>) {
        self.cases += cases;
        self.findings.extend(findings);
    }

    /// The findings that nothing explains.
    pub fn unexplained(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| of(finding).is_none())
    }

    /// Explanations that nothing needed, and not by chance: they say nothing of a run of some cases alone.
    pub fn stale(&self) -> impl Iterator<Item = &'static str> {
        let needed: BTreeSet<usize> = self.findings.iter().filter_map(of).collect();
        EXPLAINED
            .iter()
            .enumerate()
            .filter(move |(number, one)| !needed.contains(number) && !one.is_of_chance())
            .map(|(_, one)| one.what)
    }

    fn shapes(&self) -> BTreeMap<Shape, BTreeSet<&str>> {
        let mut shapes: BTreeMap<Shape, BTreeSet<&str>> = BTreeMap::new();
        for finding in self.unexplained() {
            let difference = &finding.difference;
            let shape = Shape {
                phase: finding.phase,
                path: generic(&difference.path),
                ours: difference.ours.clone(),
                theirs: difference.theirs.clone(),
            };
            shapes.entry(shape).or_default().insert(&finding.case);
        }
        shapes
    }

    /// All of it for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let shape = |(shape, cases): (Shape, BTreeSet<&str>)| {
            json!({
                "phase": shape.phase, "path": shape.path, "berth": shape.ours, "kubelet": shape.theirs, "cases": cases,
            })
        };
        let counts = EXPLAINED.iter().enumerate().map(|(number, one)| {
            let count = self.findings.iter().filter(|finding| of(finding) == Some(number)).count();
            json!({ "what": one.what, "at": one.at, "findings": count })
        });
        json!({
            "cases": self.cases,
            "unexplained": self.shapes().into_iter().map(shape).collect::<Vec<_>>(),
            "explained": counts.collect::<Vec<_>>(),
        })
    }
}

/// A path in which containers have no names, so that those of several pods are one.
fn generic(path: &str) -> String {
    let mut parts = path.split('/').map(str::to_owned).collect::<Vec<_>>();
    if parts.first().is_some_and(|first| first == "containers")
        && let Some(name) = parts.get_mut(1)
    {
        "*".clone_into(name);
    }
    if let Some((list, rest)) = parts.get(1).and_then(|part| part.split_once('['))
        && list.ends_with("Statuses")
        && !rest.starts_with("order")
        && !rest.starts_with(']')
    {
        parts[1] = format!("{list}[*]");
    }
    parts.join("/")
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let shapes = self.shapes();
        for (shape, cases) in &shapes {
            let named = cases.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = if cases.len() > NAMED { ", …" } else { "" };
            writeln!(f, "{} {:?} {}  ({named}{more})", cases.len(), shape.phase, shape.path)?;
            for (of, value) in [("berth", &shape.ours), ("kubelet", &shape.theirs)] {
                let short: String = value.chars().take(SHOWN).collect();
                writeln!(f, "    {of:<8} {}", short.replace('\n', "\n             "))?;
            }
        }
        for (number, one) in EXPLAINED.iter().enumerate() {
            let count = self.findings.iter().filter(|finding| of(finding) == Some(number)).count();
            if count > 0 {
                writeln!(f, "explained {count:>6}  {} ({})", one.what, one.at)?;
            }
        }
        writeln!(
            f,
            "{} cases, {} unexplained differences of {} shapes",
            self.cases,
            self.unexplained().count(),
            shapes.len()
        )
    }
}
