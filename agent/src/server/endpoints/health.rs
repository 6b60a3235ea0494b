//! `/healthz` and what is below it.

use std::time::Duration;

use berth_core::{
    server::{Check, HealthCheck, one_check},
    time::Mono,
};
use http::{HeaderValue, StatusCode, header};

use super::super::{Response, Served, answer::text};
use crate::{clock, healthz, metrics::Metrics, node_loop::Turns};

/// How long a turn of the node loop may take at least (`SyncLoopHealthCheck` of `pkg/kubelet/kubelet.go`).
const TURN_MAX: Duration = Duration::from_secs(300);

/// Answers what was asked about the agent's health.
pub(super) fn answer(served: &Served, check: HealthCheck, query: Option<&str>) -> Response {
    let turn_max = turn_max(served.host.config.node.sync_frequency);
    let checks = of(sync_loop(&served.turns, turn_max, clock::mono()));
    told(check, query.unwrap_or_default(), &checks, &served.host.metrics)
}

fn turn_max(sync_frequency: Duration) -> Duration {
    TURN_MAX.max(sync_frequency * 2)
}

/// What is checked.
fn of(sync_loop: Check) -> [Check; 3] {
    // The log is written by a thread that nobody waits for.
    [Check { name: "ping", failure: None }, Check { name: "log", failure: None }, sync_loop]
}

fn told(check: HealthCheck, query: &str, checks: &[Check; 3], metrics: &Metrics) -> Response {
    let [ping, log, sync_loop] = checks;
    let (status, said) = match check {
        HealthCheck::Ping => one_check(ping),
        HealthCheck::Log => one_check(log),
        HealthCheck::SyncLoop => one_check(sync_loop),
        HealthCheck::All => healthz::all(checks, query, metrics),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = text(status, &said);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn sync_loop(turns: &Turns, turn_max: Duration, now: Mono) -> Check {
    let is_late = turns.busy_since().is_some_and(|since| now.since(since) > turn_max);
    let failure = is_late.then(|| "sync Loop took longer than expected".to_owned());
    Check { name: "syncloop", failure }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::view::View;

    fn said(check: HealthCheck, query: &str, failure: Option<&str>) -> (u16, String) {
        let sync_loop = Check { name: "syncloop", failure: failure.map(str::to_owned) };
        let metrics = Metrics::new("n", View::default()).unwrap();
        let response = told(check, query, &of(sync_loop), &metrics);
        let status = response.status().as_u16();
        let body = response.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn health_is_told_as_it_is_asked_for() {
        let late = Some("late");
        let verbose = "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n";
        for (check, query, failure, status, part) in [
            (HealthCheck::All, "", None, 200, "ok"),
            (HealthCheck::All, "verbose", None, 200, verbose),
            (HealthCheck::All, "x&verbose=true", None, 200, verbose),
            (HealthCheck::All, "", late, 500, "[-]syncloop failed: reason withheld"),
            (HealthCheck::All, "exclude=sync%6Coop", late, 200, "ok"),
            (HealthCheck::All, "exclude=ping&exclude=syncloop", late, 200, "ok"),
            (HealthCheck::Ping, "", late, 200, "ok"),
            (HealthCheck::Log, "", late, 200, "ok"),
            (HealthCheck::SyncLoop, "", None, 200, "ok"),
            (HealthCheck::SyncLoop, "", late, 500, "internal server error: late"),
        ] {
            let (is, text) = said(check, query, failure);
            assert!(is == status && text.contains(part), "{check:?} {query}: {is} {text}");
        }
    }

    #[test]
    fn a_turn_may_take_five_minutes_or_twice_the_frequency() {
        for (frequency, expected) in [(10, 300), (150, 300), (200, 400)] {
            let [frequency, expected] = [frequency, expected].map(Duration::from_secs);
            assert_eq!(turn_max(frequency), expected);
        }
    }

    #[test]
    fn checks_are_measured_where_all_are_asked_for() {
        let metrics = Metrics::new("n", View::default()).unwrap();
        let checks = of(Check { name: "syncloop", failure: None });
        for check in [HealthCheck::Ping, HealthCheck::Log, HealthCheck::SyncLoop] {
            told(check, "", &checks, &metrics);
        }
        assert!(!metrics.health_text().contains("kubernetes_healthcheck"));
        told(HealthCheck::All, "exclude=log", &checks, &metrics);
        let text = metrics.health_text();
        assert!(text.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"), "{text}");
        assert!(text.contains("name=\"syncloop\"") && !text.contains("name=\"log\""), "{text}");
    }

    #[test]
    fn a_turn_that_does_not_end_is_told_and_waiting_is_not() {
        let (turns, at) = (Turns::default(), |seconds| Mono(Duration::from_secs(seconds)));
        let fails = |now| sync_loop(&turns, Duration::from_secs(300), at(now)).failure.is_some();
        assert!(!fails(1_000_000));
        turns.begin(at(100));
        assert!(!fails(400) && fails(401));
        turns.end();
        assert!(!fails(1_000_000));
    }
}
