//! The fields that choose nodes, as Kubernetes has them for a pod.

use super::{Shape, Text, field, names, needed};
use crate::{
    id::SUBDOMAIN_MAX,
    node_report::{
        labels::{LABEL_KEY_MAX, LABEL_VALUE_MAX},
        taint::Effect,
    },
    spec::{
        selection::{EXPRESSIONS_MAX, Operator, TERMS_MAX, VALUES_MAX, WEIGHT_MAX},
        toleration::TolerationOperator,
    },
};

pub(super) const LABEL_VALUE: Shape = Shape::Text(Text::Any(LABEL_VALUE_MAX));
pub(super) const LABEL_KEY: Shape = Shape::Text(Text::Any(LABEL_KEY_MAX));
pub(super) const NODE_NAME: Shape = Shape::Text(Text::Any(SUBDOMAIN_MAX));

const EXPRESSION: Shape = Shape::Object(&[
    needed(
        "key",
        LABEL_KEY,
        "The key of the label. In matchFields metadata.name, the name of the node.",
    ),
    needed(
        "operator",
        Shape::Text(Text::OneOf(|| names(&Operator::ALL))),
        "How the label and the values compare.",
    ),
    field(
        "values",
        Shape::List(&NODE_NAME, VALUES_MAX),
        "Of In and NotIn: the values. Of Gt and Lt: one whole number.",
    ),
]);

const TERM: Shape = Shape::Object(&[
    field(
        "matchExpressions",
        Shape::Ordered(&EXPRESSION, EXPRESSIONS_MAX),
        "What holds of the labels. All of it must.",
    ),
    field(
        "matchFields",
        Shape::Ordered(&EXPRESSION, EXPRESSIONS_MAX),
        "What holds of the node's name. All of it must.",
    ),
]);

pub(super) const TOLERATION: Shape = Shape::Object(&[
    field(
        "key",
        LABEL_KEY,
        "The key of the taint. Left out, with operator Exists: any.",
    ),
    field(
        "operator",
        Shape::Text(Text::OneOf(|| names(&TolerationOperator::ALL))),
        "Equal: the taint has this value. Exists: it may have any. Equal if left out.",
    ),
    field("value", LABEL_VALUE, "The value of the taint."),
    field(
        "effect",
        Shape::Text(Text::OneOf(|| names(&Effect::ALL))),
        "The effect of the taint. Any, if left out.",
    ),
]);

pub(super) const AFFINITY: Shape = Shape::Object(&[field(
    "nodeAffinity",
    Shape::Object(&[
        field(
            "requiredDuringSchedulingIgnoredDuringExecution",
            Shape::Object(&[needed(
                "nodeSelectorTerms",
                Shape::Ordered(&TERM, TERMS_MAX),
                "Of these one must hold.",
            )]),
            "The job gets only such nodes. It keeps those that it has, whatever their labels become.",
        ),
        field(
            "preferredDuringSchedulingIgnoredDuringExecution",
            Shape::Ordered(
                &Shape::Object(&[
                    needed(
                        "weight",
                        Shape::Whole(1, WEIGHT_MAX),
                        "How much it counts, from 1 to 100. The weights of all that hold are added.",
                    ),
                    needed("preference", TERM, "The term that should hold."),
                ]),
                TERMS_MAX,
            ),
            "Such nodes are taken first, after those that the job has already.",
        ),
    ]),
    "What holds of the nodes.",
)]);
