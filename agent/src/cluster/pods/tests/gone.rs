//! Pods that the API server wants no more, and what it is asked for when nothing of one is left on the node.

use berth_core::{cluster::sync::Call, pod::port::status::Remains, status::Phase};

use super::*;

/// Where another node is that had the name of this one.
const ELSEWHERE: &str = "192.0.2.8";

fn given(number: usize, change: usize) -> ApiPod {
    serde_json::from_value(pod(number, change)).unwrap()
}

fn too_large(number: usize) -> Unread {
    Unread {
        namespace: "shop".to_owned(),
        name: format!("p{number}"),
        uid: format!("u{number}"),
        bytes: 1 << 30,
        fault: None,
    }
}

/// UIDs of what the node loop is told to be wanted, and whether it would have been told now.
fn wanted_of(pods: &mut PodLoop) -> (Vec<String>, bool) {
    let is_told = pods.telling.poll_timeout().is_some();
    let Event::Desired { pods, is_whole: true, .. } = pods.desired() else { panic!() };
    (pods.iter().map(|pod| pod.uid.to_string()).collect(), is_told)
}

/// No watch tells of what went while its place was forgotten. What is there and cannot be read is not gone.
#[tokio::test]
async fn what_a_later_list_does_not_have_is_wanted_no_more() {
    let (mut pods, _happened) = apart();
    for (version, applied, listed, unread, expected) in [
        (3, None, &[0, 1, 2][..], &[][..], &["u0", "u1", "u2"][..]),
        (9, None, &[0], &[1], &["u0", "u1"]),
        (10, None, &[], &[], &[]),
        (11, Some(3), &[], &[], &[]),
    ] {
        // One that the node loop was not told of yet.
        applied.into_iter().for_each(|number| pods.see(Seen::Applied(given(number, 0))));
        let objects = listed.iter().map(|number| given(*number, 0)).collect();
        let unread = unread.iter().map(|number| too_large(*number)).collect();
        pods.see(Seen::Whole { objects, unread, version });
        let (wanted, is_told) = wanted_of(&mut pods);
        assert_eq!(wanted, expected, "{version}");
        assert!(is_told, "{version}: nobody is told");
    }
}

#[tokio::test]
async fn a_pod_that_is_forced_out_is_wanted_no_more_though_nothing_else_changes() {
    let (mut pods, _happened) = apart();
    pods.see(Seen::Applied(given(5, 1)));
    assert_eq!(wanted_of(&mut pods), (vec!["u5".to_owned()], true));
    pods.see(Seen::Unread(too_large(5)));
    assert_eq!(wanted_of(&mut pods).0, ["u5"], "it is there, and cannot be read");
    pods.see(Seen::Gone(given(5, 2)));
    assert_eq!(wanted_of(&mut pods), (Vec::new(), true));
}

/// How a pod has ended, as the API server has it from a node with this address.
fn ended(address: &str) -> Value {
    json!({"phase": "Failed", "qosClass": "BestEffort", "observedGeneration": 1,
        "hostIP": address, "hostIPs": [{"ip": address}]})
}

/// What the API server is asked for about a pod that has ended elsewhere and is to be deleted, when the node tells of it.
fn asked(remains: Remains) -> Vec<&'static str> {
    let (mut pods, _happened) = apart();
    let mut object = version(1, "a", Some(0));
    object.status = serde_json::from_value(ended(ELSEWHERE)).unwrap();
    pods.see(Seen::Whole { objects: vec![object.clone()], unread: Vec::new(), version: 1 });
    let pod = manifest::api_pod(&object, Timestamp::UNIX_EPOCH).unwrap().pod;
    pods.report(pod.uid.clone(), Report::Is(published(pod, Phase::Failed, remains)));
    let mut asked = Vec::new();
    while let Some(request) = pods.sync.poll_request(clock::mono()) {
        let (what, answer) = match request.call {
            Call::PatchStatus { patch, .. } => {
                assert_eq!(patch["hostIP"], HERE);
                let status = Arc::new(ended(HERE));
                ("status", Answer::Pod(Box::new(Known { version: 2, status, ..known(&object) })))
            }
            Call::Delete { .. } => ("deletion", Answer::Done),
            Call::CreateMirror(_) => panic!("a mirror of a pod of the API"),
        };
        asked.push(what);
        pods.sync.answered(request.op, answer, clock::mono(), 0.0);
    }
    asked
}

/// The object stays while anything of the pod is there, since another pod may come by its name.
#[tokio::test]
async fn a_pod_goes_when_nothing_of_it_is_left_and_its_end_stays_as_others_told_it() {
    for (remains, expected) in [
        (Remains::Something, &["status"][..]),
        (Remains::Directories, &["status", "deletion"]),
        (Remains::NothingToTell, &["deletion"]),
        (Remains::Leftovers, &[]),
    ] {
        assert_eq!(asked(remains), expected, "{remains:?}");
    }
}
