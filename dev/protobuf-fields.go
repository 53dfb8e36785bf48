//go:build ignore

// Describes how the Go types of Kubernetes write the kinds named on the command line ("v1 Pod", "apps/v1 Deployment")
// in protobuf and in JSON, and writes one sample of each both ways.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Types whose JSON is not an object with the fields of the message.
var special = map[reflect.Type]string{
	reflect.TypeOf(metav1.Time{}):                                  "time",
	reflect.TypeOf(metav1.MicroTime{}):                             "microtime",
	reflect.TypeOf(resource.Quantity{}):                            "quantity",
	reflect.TypeOf(intstr.IntOrString{}):                           "intstr",
	reflect.TypeOf(runtime.RawExtension{}):                         "json",
	reflect.TypeOf(metav1.FieldsV1{}):                              "json",
	reflect.TypeOf(apiextensionsv1.JSON{}):                         "json",
	reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrBool{}):        "schema-or-bool",
	reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrArray{}):       "schema-or-array",
	reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrStringArray{}): "schema-or-strings",
}

type field = []any // number, JSON name, type, flags

var messages = map[string][]field{}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "protobuf-fields:", err)
		os.Exit(1)
	}
}

func messageName(t reflect.Type) string {
	path := strings.Split(t.PkgPath(), "/")
	return strings.Join(path[len(path)-2:], "/") + "." + t.Name()
}

// isMessage tells lists that are a message of their own from those that are repeated fields.
func isMessage(t reflect.Type) bool {
	_, ok := reflect.New(t).Interface().(interface{ Marshal() ([]byte, error) })
	return ok
}

// valueType names the type of one value; structs are described on the way.
func valueType(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name, ok := special[t]; ok {
		if strings.HasPrefix(name, "schema-") {
			describe(reflect.TypeOf(apiextensionsv1.JSONSchemaProps{}))
		}
		return name
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int32, reflect.Int64:
		return "int"
	case reflect.Float64:
		return "double"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		if isMessage(t) && t.Elem().Kind() == reflect.String {
			return "strings"
		}
	case reflect.Struct:
		return describe(t)
	}
	must(fmt.Errorf("no rule for the type %v", t))
	return ""
}

func describe(t reflect.Type) string {
	name := messageName(t)
	if _, ok := messages[name]; ok {
		return name
	}
	messages[name] = nil
	fields := []field{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("protobuf")
		if tag == "" || tag == "-" {
			continue
		}
		number, err := strconv.Atoi(strings.Split(tag, ",")[1])
		must(err)
		jsonTag := strings.Split(f.Tag.Get("json"), ",")
		flags := ""
		for _, option := range jsonTag[1:] {
			flags += map[string]string{"omitempty": "e", "omitzero": "z", "inline": "i"}[option]
		}
		ft := f.Type
		switch {
		case ft.Kind() == reflect.Pointer:
			flags += "p"
		case ft.Kind() == reflect.Map:
			if ft.Key().Kind() != reflect.String {
				must(fmt.Errorf("%s.%s: keys are not strings", name, f.Name))
			}
			flags += "m"
			ft = ft.Elem()
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() != reflect.Uint8 && !isMessage(ft):
			flags += "r"
			ft = ft.Elem()
		}
		fields = append(fields, field{number, jsonTag[0], valueType(ft), flags})
	}
	messages[name] = fields
	return name
}

// fill gives every field a value. A message that another sample already shows in full is left empty.
var shown = map[reflect.Type]bool{}

func fill(v reflect.Value, name string) {
	switch v.Type() {
	case reflect.TypeOf(metav1.Time{}):
		v.Set(reflect.ValueOf(metav1.Date(2026, 11, 16, 7, 8, 9, 0, time.UTC)))
		return
	case reflect.TypeOf(metav1.MicroTime{}):
		v.Set(reflect.ValueOf(metav1.NewMicroTime(time.Date(2026, 11, 16, 7, 8, 9, 120000, time.UTC))))
		return
	case reflect.TypeOf(resource.Quantity{}):
		v.Set(reflect.ValueOf(resource.MustParse("1500m")))
		return
	case reflect.TypeOf(intstr.IntOrString{}):
		if len(name)%2 == 0 {
			v.Set(reflect.ValueOf(intstr.FromInt32(-7)))
		} else {
			v.Set(reflect.ValueOf(intstr.FromString("25%")))
		}
		return
	case reflect.TypeOf(runtime.RawExtension{}), reflect.TypeOf(metav1.FieldsV1{}), reflect.TypeOf(apiextensionsv1.JSON{}):
		v.FieldByName("Raw").SetBytes([]byte(`{"raw":[1,null]}`))
		return
	case reflect.TypeOf(apiextensionsv1.JSONSchemaPropsOrBool{}):
		v.FieldByName("Allows").SetBool(true)
		if len(name)%2 == 0 {
			return
		}
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(len(name)) - 9)
	case reflect.Float64:
		v.SetFloat(float64(len(name)) / 4)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte{0, 255, byte(len(name))})
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), name)
		fill(v.Index(1), name+"2")
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for _, key := range []string{name, name + "2"} {
			value := reflect.New(v.Type().Elem()).Elem()
			fill(value, key)
			v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), value)
		}
	case reflect.Struct:
		if shown[v.Type()] {
			return
		}
		shown[v.Type()] = true
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.Type != reflect.TypeOf(metav1.TypeMeta{}) && f.IsExported() && f.Tag.Get("protobuf") != "-" {
				fill(v.Field(i), f.Name)
			}
		}
	}
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme, autoscalingv1.AddToScheme,
		coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
		networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		schedulingv1.AddToScheme, storagev1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		must(add(scheme))
	}
	codec := protobuf.NewSerializer(scheme, scheme)
	kinds := map[string]string{}
	samples := []map[string]any{}
	for _, argument := range os.Args[1:] {
		apiVersion, kind, _ := strings.Cut(argument, " ")
		gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
		obj, err := scheme.New(gvk)
		must(err)
		kinds[argument] = describe(reflect.TypeOf(obj).Elem())
		for _, filled := range []bool{true, false} {
			obj, _ = scheme.New(gvk)
			if filled {
				fill(reflect.ValueOf(obj).Elem(), kind)
			}
			obj.GetObjectKind().SetGroupVersionKind(gvk)
			var encoded bytes.Buffer
			must(codec.Encode(obj, &encoded))
			plain, err := json.Marshal(obj)
			must(err)
			samples = append(samples, map[string]any{"protobuf": encoded.Bytes(), "json": json.RawMessage(plain)})
		}
	}
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{"kinds": kinds, "messages": messages, "samples": samples}))
}
