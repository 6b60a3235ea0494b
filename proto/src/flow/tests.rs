use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::shim::attach_output::What;

fn out(text: &str) -> What {
    What::Stdout(text.as_bytes().to_vec())
}

fn err(text: &str) -> What {
    What::Stderr(text.as_bytes().to_vec())
}

fn drain(outbox: &mut Outbox) -> Vec<What> {
    std::iter::from_fn(|| outbox.pop()).collect()
}

#[test]
fn credit_is_used_up_and_never_overflows() {
    let mut credit = Credit::default();
    assert_eq!((credit.take(5), credit.is_left()), (0, false));
    credit.grant(3);
    assert_eq!((credit.take(2), credit.take(2), credit.take(2)), (2, 1, 0));
    credit.grant(u64::MAX);
    credit.grant(u64::MAX);
    assert_eq!((credit.take(usize::MAX), credit.take(1)), (usize::MAX, 0));
}

#[test]
fn a_window_grants_what_is_used_and_refuses_what_is_beyond() {
    let mut window = Window::new(10);
    assert!(window.receive(1).is_err(), "nothing is granted yet");
    assert_eq!((window.refill(0), window.refill(0)), (Some(10), None));
    window.receive(4).unwrap();
    assert_eq!(window.refill(0), None, "less than half");
    window.receive(4).unwrap();
    assert_eq!(window.refill(4), None, "half of it is still kept");
    assert_eq!(window.refill(1), Some(7));
    window.receive(9).unwrap();
    let overrun = window.receive(5).unwrap_err();
    assert_eq!(overrun.to_string(), "5 bytes came beyond those that were granted");
    assert_eq!(Window::new(0).refill(0), None, "a window of nothing grants nothing");
}

#[test]
fn an_outbox_sends_what_was_granted_in_order_and_the_exit_last() {
    let mut outbox = Outbox::default();
    outbox.push(out("one"));
    outbox.push(out("two"));
    outbox.push(err("three"));
    outbox.push(out(""));
    outbox.push(What::ExitCode(7));
    assert_eq!(drain(&mut outbox), [], "nothing is granted");
    outbox.grant(4);
    assert_eq!(drain(&mut outbox), [out("onet")], "small pieces go together");
    assert_eq!((outbox.waiting_bytes(), outbox.has_room()), (7, false));
    outbox.grant(3);
    assert_eq!(drain(&mut outbox), [out("wo"), err("t")]);
    outbox.grant(100);
    assert_eq!(drain(&mut outbox), [err("hree"), What::ExitCode(7)]);
    assert!(outbox.is_empty() && outbox.has_room());
}

#[test]
fn an_exit_needs_no_credit() {
    let mut outbox = Outbox::default();
    outbox.push(What::ExitCode(0));
    assert_eq!(drain(&mut outbox), [What::ExitCode(0)]);
}

#[test]
fn an_inbox_keeps_its_window_and_no_more() {
    let mut inbox = Inbox::new(8);
    inbox.push(out("x")).unwrap_err();
    assert_eq!(inbox.refill(), Some(8));
    inbox.push(out("1234")).unwrap();
    inbox.push(err("5678")).unwrap();
    inbox.push(What::ExitCode(1)).unwrap();
    inbox.push(out("9")).unwrap_err();
    assert_eq!(inbox.refill(), None, "it holds all that it may");
    assert_eq!((inbox.pop(), inbox.refill()), (Some(out("1234")), Some(4)));
    assert_eq!((inbox.pop(), inbox.pop(), inbox.pop()), (Some(err("5678")), Some(What::ExitCode(1)), None));
}

#[test]
fn byte_by_byte_costs_no_more_than_bytes() {
    let mut inbox = Inbox::new(1 << 20);
    inbox.refill();
    for _ in 0..100_000 {
        inbox.push(out("x")).unwrap();
    }
    let pieces = std::iter::from_fn(|| inbox.pop()).count();
    assert!(pieces <= 7, "{pieces} messages");
}

#[derive(Debug, Clone)]
enum Step {
    Write(bool, usize),
    Send(usize),
    Read(usize),
    Grant,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), 0_usize..40_000).prop_map(|(stderr, len)| Step::Write(stderr, len)),
        (1_usize..4).prop_map(Step::Send),
        (1_usize..4).prop_map(Step::Read),
        Just(Step::Grant),
    ]
}

/// Bytes of each output, in the order in which they were written.
#[derive(Debug, Default, PartialEq)]
struct Written {
    both: Vec<(bool, u8)>,
    exit: Option<u32>,
}

impl Written {
    fn add(&mut self, what: &What) {
        assert_eq!(self.exit, None, "nothing follows the exit");
        match what {
            What::Stdout(bytes) => self.both.extend(bytes.iter().map(|byte| (false, *byte))),
            What::Stderr(bytes) => self.both.extend(bytes.iter().map(|byte| (true, *byte))),
            What::ExitCode(code) => self.exit = Some(*code),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_all_arrives_in_order_and_within_the_window(
        steps in vec(step(), 0..60), window in 1_u64..50_000,
    ) {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::new(window));
        let (mut written, mut read) = (Written::default(), Written::default());
        let mut kept = 0_u64;
        let send = |outbox: &mut Outbox, inbox: &mut Inbox, kept: &mut u64| {
            let what = outbox.pop()?;
            if let What::Stdout(bytes) | What::Stderr(bytes) = &what {
                *kept += count(bytes.len());
            }
            inbox.push(what).expect("no more than was granted");
            Some(())
        };
        let receive = |inbox: &mut Inbox, read: &mut Written, kept: &mut u64| {
            let what = inbox.pop()?;
            if let What::Stdout(bytes) | What::Stderr(bytes) = &what {
                *kept -= count(bytes.len());
            }
            read.add(&what);
            Some(())
        };
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Write(stderr, len) => {
                    let bytes = vec![u8::try_from(at).unwrap(); len];
                    let what = if stderr { What::Stderr(bytes) } else { What::Stdout(bytes) };
                    written.add(&what);
                    outbox.push(what);
                }
                Step::Send(times) => {
for _ in 0..times { send(&mut outbox, &mut inbox, &mut kept); }
}
                Step::Read(times) => {
for _ in 0..times { receive(&mut inbox, &mut read, &mut kept); }
}
                Step::Grant => if let Some(bytes) = inbox.refill() { outbox.grant(bytes) },
            }
            prop_assert!(kept <= window, "{kept} bytes of {window}");
        }
        written.add(&What::ExitCode(3));
        outbox.push(What::ExitCode(3));
        while read.exit.is_none() {
            if let Some(bytes) = inbox.refill() {
                outbox.grant(bytes);
            }
            let sent = send(&mut outbox, &mut inbox, &mut kept);
            let received = receive(&mut inbox, &mut read, &mut kept);
            prop_assert!(sent.or(received).is_some(), "nothing goes on");
        }
        prop_assert_eq!(read, written);
    }
}
