//! What came of each spec, from ginkgo's report.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, Result};
use berth_integration::files;
use serde::{Deserialize, Serialize};

/// Ginkgo's own report.
pub(crate) const REPORT: &str = "ginkgo.json";
/// Ours, without what was said and without specs that nobody asked for.
const SPECS: &str = "specs.json";
/// How much of a failure the table shows.
const REASON_MAX: usize = 300;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Reported>>,
}

/// One node of ginkgo's: a spec, or something that runs before or after all of them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reported {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    run_time: u64,
    failure: Option<Failure>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

/// What came of a spec.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Spec {
    name: String,
    /// `passed`, `skipped`, or how it has failed.
    state: String,
    seconds: f64,
    /// Why it has failed or was skipped.
    reason: Option<String>,
}

/// What came of all of them.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    specs: Vec<Spec>,
}

impl Report {
    /// Reads ginkgo's report in a directory.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(REPORT);
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let suites: Vec<Suite> = serde_json::from_reader(BufReader::new(file))
            .with_context(|| format!("understand {}", path.display()))?;
        Ok(Self::of(suites))
    }

    fn of(suites: Vec<Suite>) -> Self {
        let all = suites.into_iter().flat_map(|suite| suite.spec_reports.unwrap_or_default());
        let mut specs: Vec<Spec> = all.filter_map(Reported::spec).collect();
        specs.sort_by(|one, other| one.name.cmp(&other.name));
        Self { specs }
    }

    /// Keeps it for programs.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        files::write(dir.join(SPECS), serde_json::to_vec_pretty(self)?)
    }

    /// Whether something was run and none of it failed.
    pub(crate) fn passed(&self) -> bool {
        self.failed().next().is_none() && self.with("passed").next().is_some()
    }

    fn failed(&self) -> impl Iterator<Item = &Spec> {
        self.specs.iter().filter(|spec| !["passed", "skipped"].contains(&spec.state.as_str()))
    }

    fn with(&self, state: &str) -> impl Iterator<Item = &Spec> {
        self.specs.iter().filter(move |spec| spec.state == state)
    }
}

impl Reported {
    /// A spec that was asked for, or what failed around them.
    fn spec(self) -> Option<Spec> {
        let is_spec = self.leaf_node_type == "It";
        // Who is left out by its name has no reason.
        let was_asked_for = match self.state.as_str() {
            "passed" => is_spec,
            "pending" => false,
            _ => self.failure.is_some(),
        };
        if !was_asked_for {
            return None;
        }
        let mut name = self.container_hierarchy_texts.unwrap_or_default();
        name.push(if is_spec { self.leaf_node_text } else { self.leaf_node_type });
        let reason = self.failure.map(|failure| failure.message);
        #[expect(clippy::cast_precision_loss, reason = "no spec takes years")]
        let seconds = (self.run_time / 1_000_000) as f64 / 1000.0;
        Some(Spec { name: name.join(" "), state: self.state, seconds, reason })
    }
}

impl Spec {
    /// The first line of the reason that says something, or its beginning.
    fn reason(&self) -> String {
        let all = self.reason.as_deref().unwrap_or_default();
        let first = all.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        first.chars().take(REASON_MAX).collect()
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (failed, skipped): (Vec<_>, Vec<_>) = (self.failed().collect(), self.with("skipped").collect());
        for (heading, specs) in [("failed", &failed), ("skipped", &skipped)] {
            if !specs.is_empty() {
                writeln!(f, "\n{heading}:")?;
            }
            for spec in specs {
                writeln!(f, "{:>8.1} s  {}\n            {}", spec.seconds, spec.name, spec.reason())?;
            }
        }
        let passed = self.with("passed").count();
        let seconds: f64 = self.specs.iter().map(|spec| spec.seconds).sum();
        writeln!(f, "\n{:>8} {:>8} {:>8} {:>10}", "passed", "failed", "skipped", "seconds")?;
        writeln!(f, "{passed:>8} {:>8} {:>8} {seconds:>10.0}", failed.len(), skipped.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = r#"[{ "SuitePath": "/e2e", "SpecReports": [
        { "ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed", "RunTime": 1 },
        { "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "run", "State": "passed", "RunTime": 2500000000 },
        { "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "end", "State": "timedout", "RunTime": 1000000000,
          "Failure": { "Message": "\n too late\nby far", "Location": {} } },
        { "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "fly", "State": "skipped", "RunTime": 1000000,
          "Failure": { "Message": "no wings" } },
        { "ContainerHierarchyTexts": ["[sig-apps] Jobs"], "LeafNodeType": "It", "LeafNodeText": "work", "State": "skipped", "RunTime": 0 }
    ] }]"#;

    fn report(said: &str) -> Report {
        Report::of(serde_json::from_str(said).unwrap())
    }

    #[test]
    fn what_was_asked_for_is_told_and_what_failed_first() {
        let expected = "\nfailed:\n     1.0 s  [sig-node] Pods end\n            too late\n\
             \nskipped:\n     0.0 s  [sig-node] Pods fly\n            no wings\n\
             \n  passed   failed  skipped    seconds\n       1        1        1          4\n";
        let report = report(SAID);
        assert_eq!(report.to_string(), expected);
        assert!(!report.passed());
    }

    #[test]
    fn nothing_run_is_not_passed() {
        assert!(!report(r#"[{ "SpecReports": [] }]"#).passed());
        assert!(!report(r#"[{ "SpecReports": null }]"#).passed());
    }

    #[test]
    fn a_failure_before_all_of_them_is_one() {
        let said = r#"[{ "SpecReports": [{ "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "failed",
            "RunTime": 1, "Failure": { "Message": "no nodes" } }] }]"#;
        assert!(report(said).to_string().contains("SynchronizedBeforeSuite\n            no nodes"));
    }
}
