// Renders the templates of a chart with Go's own template engine, the one Helm uses, and the few functions they call.
// Stands in for `helm template`: standard library only, so that nothing is downloaded. YAML is written as JSON, which
// is YAML too.
//
//	go run render.go VALUES.json TEMPLATE... > RENDERED
//
// The version of an API in MISSING is one that the cluster does not have. The objects that the cluster has are in
// CLUSTER, as a JSON list.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func toYaml(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

func indent(by int, text string) string {
	pad := strings.Repeat(" ", by)
	return pad + strings.ReplaceAll(text, "\n", "\n"+pad)
}

// What `.Capabilities.APIVersions` is: the cluster has everything but what is asked to be missing.
type apiVersions struct{ missing string }

func (versions apiVersions) Has(version string) bool { return version != versions.missing }

func main() {
	raw, err := os.ReadFile(os.Args[1])
	check(err)
	values := map[string]any{}
	check(json.Unmarshal(raw, &values))
	cluster := []map[string]any{}
	if given := os.Getenv("CLUSTER"); given != "" {
		check(json.Unmarshal([]byte(given), &cluster))
	}
	functions := template.FuncMap{
		"lookup": func(version, kind, namespace, name string) map[string]any {
			for _, each := range cluster {
				metadata := each["metadata"].(map[string]any)
				placed, _ := metadata["namespace"].(string)
				if each["apiVersion"] == version && each["kind"] == kind && metadata["name"] == name && placed == namespace {
					return each
				}
			}
			return map[string]any{}
		},
		"fail": func(message string) (string, error) { return "", fmt.Errorf("%s", message) },
		"dig": func(first, second string, fallback any, from map[string]any) any {
			inner, _ := from[first].(map[string]any)
			if found, ok := inner[second]; ok {
				return found
			}
			return fallback
		},
		"append": func(list []any, each any) []any { return append(list, each) },
		"first":  func(list []any) any { return list[0] },
		"join": func(separator string, list []any) string {
			texts := make([]string, len(list))
			for i, each := range list {
				texts[i] = fmt.Sprint(each)
			}
			return strings.Join(texts, separator)
		},
		"toYaml":  toYaml,
		"indent":  indent,
		"nindent": func(by int, text string) string { return "\n" + indent(by, text) },
		"quote":   func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"empty":   func(value any) bool { return value == nil || value == "" },
		"ternary": func(yes, no any, condition bool) any {
			if condition {
				return yes
			}
			return no
		},
		"list": func(each ...any) []any { return each },
		"default": func(fallback, value any) any {
			if value == nil || value == "" {
				return fallback
			}
			return value
		},
		"dict": func(pairs ...any) map[string]any {
			made := map[string]any{}
			for i := 0; i+1 < len(pairs); i += 2 {
				made[pairs[i].(string)] = pairs[i+1]
			}
			return made
		},
		"mergeOverwrite": func(into map[string]any, others ...map[string]any) map[string]any {
			for _, other := range others {
				for key, value := range other {
					into[key] = value
				}
			}
			return into
		},
	}
	capabilities := map[string]any{"APIVersions": apiVersions{os.Getenv("MISSING")}}
	for _, path := range os.Args[2:] {
		text, err := os.ReadFile(path)
		check(err)
		parsed, err := template.New(path).Funcs(functions).Option("missingkey=error").Parse(string(text))
		check(err)
		fmt.Println("---")
		check(parsed.Execute(os.Stdout, map[string]any{"Values": values, "Capabilities": capabilities}))
	}
}
