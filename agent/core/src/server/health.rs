//! What `/healthz` says. Source: `k8s.io/apiserver/pkg/server/healthz/healthz.go`.

/// A check and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Why it fails.
    pub failure: Option<String>,
}

/// Status and text of all checks together. Why one fails is for the log, and for who may ask for that check alone.
#[must_use]
pub fn all_checks(checks: &[Check], excluded: &[&str], is_verbose: bool) -> (u16, String) {
    let mut told = String::new();
    let mut has_failed = false;
    for Check { name, failure } in checks {
        let line = match failure {
            _ if excluded.contains(name) => format!("[+]{name} excluded: ok"),
            None => format!("[+]{name} ok"),
            Some(_) => {
                has_failed = true;
                format!("[-]{name} failed: reason withheld")
            }
        };
        told.push_str(&line);
        told.push('\n');
    }
    let mut unknown: Vec<&str> =
        excluded.iter().copied().filter(|name| checks.iter().all(|check| check.name != *name)).collect();
    unknown.sort_unstable();
    unknown.dedup();
    if !unknown.is_empty() {
        let quoted: Vec<_> = unknown.iter().map(|name| format!("{name:?}")).collect();
        let names = quoted.join(",");
        told.push_str("warn: some health checks cannot be excluded: no matches for ");
        told.push_str(&names);
        told.push('\n');
    }
    if has_failed {
        return (500, format!("{told}healthz check failed\n"));
    }
    if is_verbose { (200, format!("{told}healthz check passed\n")) } else { (200, "ok".to_owned()) }
}

/// Checks that are measured where all of them are asked for but these. Those that are asked for alone are not. Source: `handleRootHealth`.
pub fn measured<'a>(checks: &'a [Check], excluded: &'a [&str]) -> impl Iterator<Item = &'a Check> {
    checks.iter().filter(move |check| !excluded.contains(&check.name))
}

/// Status and text of one check alone.
#[must_use]
pub fn one_check(check: &Check) -> (u16, String) {
    match &check.failure {
        None => (200, "ok".to_owned()),
        Some(why) => (500, format!("internal server error: {why}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(failure: Option<&str>) -> [Check; 2] {
        [
            Check { name: "ping", failure: None },
            Check { name: "syncloop", failure: failure.map(str::to_owned) },
        ]
    }

    #[test]
    fn all_checks_are_told_as_the_kubelet_tells_them() {
        for (failure, excluded, is_verbose, expected) in [
            (None, &[][..], false, (200, "ok")),
            (None, &["x"], false, (200, "ok")),
            (None, &[], true, (200, "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n")),
            (
                Some("late"),
                &[],
                false,
                (500, "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"),
            ),
            (Some("late"), &["syncloop"], false, (200, "ok")),
            (
                Some("late"),
                &["syncloop"],
                true,
                (200, "[+]ping ok\n[+]syncloop excluded: ok\nhealthz check passed\n"),
            ),
            (
                None,
                &["y", "x", "y"],
                true,
                (
                    200,
                    "[+]ping ok\n[+]syncloop ok\nwarn: some health checks cannot be excluded: no matches for \"x\",\"y\"\n\
                     healthz check passed\n",
                ),
            ),
        ] {
            let (status, text) = all_checks(&checks(failure), excluded, is_verbose);
            assert_eq!((status, text.as_str()), expected, "{failure:?} {excluded:?}");
        }
    }

    #[test]
    fn checks_that_are_excluded_are_not_measured() {
        let checks = checks(Some("late"));
        for (excluded, expected) in [
            (&[][..], &["ping", "syncloop"][..]),
            (&["ping", "x"], &["syncloop"]),
            (&["ping", "syncloop"], &[]),
        ] {
            let names: Vec<_> = measured(&checks, excluded).map(|check| check.name).collect();
            assert_eq!(names, expected, "{excluded:?}");
        }
    }

    #[test]
    fn one_check_says_why() {
        let [ping, late] = checks(Some("late"));
        assert_eq!(one_check(&ping), (200, "ok".to_owned()));
        assert_eq!(one_check(&late), (500, "internal server error: late\n".to_owned()));
    }
}
