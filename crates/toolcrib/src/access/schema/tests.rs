//! Tests of schema checks: valid, invalid and undecidable arguments, and hostile schemas.

use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn schema(schema: &Value) -> Schema {
    Schema::from_definition(&json!({"name": "t", "inputSchema": schema}).to_string().into()).unwrap()
}

fn check(root: &Value, arguments: &Value) -> Result<(), Vec<String>> {
    let result = schema(root).check(arguments.to_string().as_bytes());
    result.map_err(|violations| violations.iter().map(ToString::to_string).collect())
}

fn order_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "items": {"type": "array", "minItems": 1, "maxItems": 5, "items": {"$ref": "#/$defs/item"}},
            "mode": {"enum": ["fast", "slow", 1]},
            "note": {"type": ["string", "null"], "maxLength": 5},
            "to": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["id"]}]},
        },
        "required": ["items"],
        "additionalProperties": false,
        "$defs": {"item": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "count": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10}},
            "required": ["name"],
        }},
    })
}

#[test]
fn violation_names_its_path() {
    let item = json!({"name": "nut", "count": 1.0});
    let rows = [
        (json!({"items": [item, item, item, {"name": 7}]}), "/items/3/name: must be a string, not a number"),
        (json!({"items": [{}]}), "/items/0/name: is missing"),
        (json!({}), "/items: is missing"),
        (json!({"items": []}), "/items: must have at least 1 elements, has 0"),
        (json!({"items": [item], "mods": "fast"}), "/mods: is not a known property; did you mean `mode`?"),
        (json!({"items": [item], "a/b~": 1}), "/a~1b~0: is not a known property"),
        (json!({"items": [item], "mode": "Fast"}), "/mode: must be one of `\"fast\"`, `\"slow\"`, `1`"),
        (json!({"items": [item], "note": 1}), "/note: must be a string or null, not a number"),
        (json!({"items": [item], "note": "längere"}), "/note: must have at most 5 characters, has 7"),
        (json!({"items": [{"name": "x", "count": 1.5}]}), "/items/0/count: must be an integer, not a number"),
        (json!({"items": [{"name": "x", "count": 0}]}), "/items/0/count: must be at least 1"),
        (json!({"items": [{"name": "x", "count": 10}]}), "/items/0/count: must be less than 10"),
        (json!({"items": [item], "to": 5}), "/to: must be a string or an object of an allowed form"),
        (json!([]), "the arguments must be an object, not an array"),
    ];
    for (arguments, expected) in rows {
        assert_eq!(check(&order_schema(), &arguments).unwrap_err(), [expected], "{arguments}");
    }
    let valid = json!({"items": [item, {"name": "x", "count": 9, "more": 1}], "mode": 1.0, "note": "fünf!", "to": {"id": 1}});
    assert_eq!(check(&order_schema(), &valid), Ok(()));
    let many = json!({"items": [{}, {}, {}, {}, {}, {}, {}]});
    assert_eq!(check(&order_schema(), &many).unwrap_err().len(), MAX_REPORTED);
}

/// Checks rows of a schema, valid arguments and invalid arguments.
fn check_all(rows: impl IntoIterator<Item = (Value, Value, Value)>) {
    for (schema, valid, bad) in rows {
        assert_eq!(check(&schema, &valid), Ok(()), "{schema}");
        assert!(check(&schema, &bad).is_err(), "{schema} {bad}");
    }
}

#[test]
fn keywords_accept_and_reject() {
    let rows = [
        (json!({"const": {"a": [1]}}), json!({"a": [1.0]}), json!({"a": [2]})),
        (json!({"minProperties": 1}), json!({"a": 1}), json!({})),
        (json!({"maxProperties": 1}), json!({"a": 1}), json!({"a": 1, "b": 1})),
        (json!({"additionalProperties": {"type": "string"}}), json!({"a": "x"}), json!({"a": 1})),
        (json!({"propertyNames": {"maxLength": 2}}), json!({"ab": 1}), json!({"abc": 1})),
        (json!({"dependentRequired": {"a": ["b"]}}), json!({"b": 1}), json!({"a": 1})),
        (json!({"dependencies": {"a": ["b"]}}), json!({"a": 1, "b": 1}), json!({"a": 1})),
        (json!({"dependentSchemas": {"a": {"required": ["b"]}}}), json!({"a": 1, "b": 1}), json!({"a": 1})),
        (json!({"properties": {"a": {"minLength": 2}}}), json!({"a": "éé"}), json!({"a": "é"})),
        (json!({"properties": {"a": {"maximum": 2}}}), json!({"a": 2}), json!({"a": 2.1})),
        (json!({"properties": {"a": {"exclusiveMinimum": 2}}}), json!({"a": 2.1}), json!({"a": 2})),
        (
            json!({"properties": {"a": {"minimum": 2, "exclusiveMinimum": true}}}),
            json!({"a": 3}),
            json!({"a": 2}),
        ),
        (json!({"properties": {"a": {"multipleOf": 3}}}), json!({"a": -6}), json!({"a": 7})),
        (json!({"properties": {"a": {"uniqueItems": true}}}), json!({"a": [1, "1"]}), json!({"a": [1, 1.0]})),
        (
            json!({"properties": {"a": {"contains": {"type": "string"}}}}),
            json!({"a": [1, "x"]}),
            json!({"a": [1]}),
        ),
        (
            json!({"properties": {"a": {"contains": {"type": "string"}, "maxContains": 1}}}),
            json!({"a": ["x"]}),
            json!({"a": ["x", "y"]}),
        ),
        (
            json!({"properties": {"a": {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}}}),
            json!({"a": ["x", 1, 2]}),
            json!({"a": ["x", 1, "y"]}),
        ),
        (
            json!({"properties": {"a": {"items": [{"type": "string"}], "additionalItems": false}}}),
            json!({"a": ["x"]}),
            json!({"a": ["x", 1]}),
        ),
    ];
    check_all(rows);
}

#[test]
fn combinators_accept_and_reject() {
    let rows = [
        (
            json!({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"a": 1, "b": 1}),
            json!({"a": 1}),
        ),
        (
            json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"a": 1}),
            json!({"a": 1, "b": 1}),
        ),
        (json!({"not": {"required": ["a"]}}), json!({"b": 1}), json!({"a": 1})),
        (
            json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}),
            json!({"a": 1, "b": 1}),
            json!({"b": 1}),
        ),
        (json!({"properties": {"a": false}}), json!({"b": 1}), json!({"a": 1})),
        (
            json!({"properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}}),
            json!({"a": true, "b": null}),
            json!({"a": 0}),
        ),
    ];
    check_all(rows);
}

#[test]
fn unsupported_keywords_are_left_to_the_server() {
    let unsupported = [
        json!({"properties": {"a": {"pattern": "^(a+)+$"}}}),
        json!({"properties": {"a": {"format": "email"}}}),
        json!({"properties": {"a": {"not": {"pattern": "x"}}}}),
        json!({"properties": {"a": {"oneOf": [{"pattern": "x"}, {"format": "uri"}]}}}),
        json!({"properties": {"a": {"oneOf": [{"type": "string"}, {"pattern": "x"}]}}}),
        json!({"properties": {"a": {"if": {"pattern": "x"}, "then": false, "else": false}}}),
        json!({"patternProperties": {"^a": {"type": "string"}}, "additionalProperties": false}),
        json!({"properties": {"a": {"$ref": "https://example.com/schema"}}}),
        json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}),
        json!({"properties": {"a": {"$ref": "#somewhere"}}}),
        json!({"properties": {"a": {"$ref": "#/nowhere"}}}),
        json!({"properties": {"a": {"type": "text"}}}),
        json!({"properties": 7, "required": "a", "type": 7, "enum": 7, "anyOf": {}, "minProperties": -1}),
        json!({"unevaluatedProperties": false}),
        json!({"x-own": {"type": "nothing"}}),
    ];
    for schema in unsupported {
        assert_eq!(check(&schema, &json!({"a": "x"})), Ok(()), "{schema}");
    }
    // A certain violation beside an unsupported keyword is reported.
    assert!(
        check(&json!({"properties": {"a": {"pattern": "x", "type": "string"}}}), &json!({"a": 1})).is_err()
    );
    let old = json!({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/definitions/s", "type": "integer"}}, "definitions": {"s": {"type": "string"}}});
    assert_eq!(check(&old, &json!({"a": "x"})), Ok(()), "draft 7 ignores keywords beside `$ref`");
    for definition in
        [json!({"name": "t"}), json!({"inputSchema": true}), json!({"inputSchema": []}), json!(7)]
    {
        assert!(Schema::from_definition(&definition.to_string().into()).is_none(), "{definition}");
    }
}

#[test]
fn hostile_schemas_end_within_the_step_limit() {
    let references = |count: usize| (0..count).map(|_| json!({"$ref": "#"})).collect::<Vec<_>>();
    let mut deep = json!({"type": "string"});
    for _ in 0..55 {
        deep = json!({"allOf": [deep]});
    }
    let list = json!({"a": vec![json!({"x": "y".repeat(1000)}); 700]});
    let wide: Vec<String> = (0..50_000).map(|n| n.to_string()).collect();
    let hostile = [
        (json!({"$ref": "#"}), json!({})),
        (json!({"allOf": references(50)}), json!({})),
        (json!({"anyOf": references(50), "not": {"$ref": "#"}}), json!({})),
        (
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            json!({}),
        ),
        (json!({"properties": {"a": {"uniqueItems": true}}}), list.clone()),
        (json!({"properties": {"a": {"items": {"required": wide}}}}), list.clone()),
        (json!({"properties": {"a": {"items": {"properties": {"x": {"enum": wide}}}}}}), list.clone()),
        (json!({"properties": {"a": {"items": {"type": wide}}}}), list),
        (deep, json!({})),
    ];
    for (schema, arguments) in hostile {
        let result = check(&schema, &arguments);
        assert!(result.as_ref().map_or_else(|found| found.len() <= MAX_REPORTED, |()| true), "{result:?}");
    }
    // A recursive schema that terminates is followed completely.
    let tree =
        json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}});
    assert_eq!(
        check(&tree, &json!({"children": [{"children": [{}, {"children": 7}]}]})).unwrap_err(),
        ["/children/0/children/1/children: must be an array, not a number"]
    );
    let mut nested = String::new();
    write!(nested, "{{\"inputSchema\":{}{}}}", "{\"not\":".repeat(3000), "}".repeat(3000)).unwrap();
    assert!(Schema::from_definition(&nested.into()).is_none());
    assert_eq!(schema(&tree).check(format!("{}{}", "[".repeat(3000), "]".repeat(3000)).as_bytes()), Ok(()));
    assert_eq!(schema(&tree).check(format!("\"{}\"", "x".repeat(MAX_BYTES)).as_bytes()), Ok(()));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z$#/]{0,6}".prop_map(Value::from),
        prop::sample::select(vec!["string", "object", "array", "integer", "#", "#/properties"])
            .prop_map(Value::from),
    ];
    let keys = vec![
        "type",
        "properties",
        "items",
        "required",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "$ref",
        "additionalProperties",
        "contains",
        "minimum",
        "multipleOf",
        "uniqueItems",
        "a",
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::hash_map(prop::sample::select(keys.clone()), inner, 0..5).prop_map(|members| {
                members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_schema_and_arguments_terminate(root in any_json(), arguments in any_json()) {
        if let Some(schema) = Schema::from_definition(&json!({"inputSchema": root}).to_string().into())
            && let Err(violations) = schema.check(arguments.to_string().as_bytes())
        {
            prop_assert!(!violations.is_empty() && violations.len() <= MAX_REPORTED);
        }
    }
}
