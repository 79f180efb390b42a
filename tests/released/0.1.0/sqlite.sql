BEGIN TRANSACTION;
CREATE TABLE "account_emailaddress" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "verified" bool NOT NULL, "primary" bool NOT NULL, "user_id" char(32) NOT NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED, "email" varchar(254) NOT NULL);
INSERT INTO "account_emailaddress" VALUES(1,1,1,'01a2009ffb4b7530a94ffc61b9a7b445','operator@example.com');
INSERT INTO "account_emailaddress" VALUES(2,1,1,'01a2009ffde770cab097e40e58b35673','second@example.com');
CREATE TABLE "account_emailconfirmation" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "created" datetime NOT NULL, "sent" datetime NULL, "key" varchar(64) NOT NULL UNIQUE, "email_address_id" integer NOT NULL REFERENCES "account_emailaddress" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "auth_group" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(150) NOT NULL UNIQUE);
INSERT INTO "auth_group" VALUES(1,'viewer');
INSERT INTO "auth_group" VALUES(2,'support');
INSERT INTO "auth_group" VALUES(3,'billing');
INSERT INTO "auth_group" VALUES(4,'admin');
CREATE TABLE "auth_group_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "auth_group_permissions" VALUES(1,1,128);
INSERT INTO "auth_group_permissions" VALUES(2,1,132);
INSERT INTO "auth_group_permissions" VALUES(3,1,136);
INSERT INTO "auth_group_permissions" VALUES(4,1,140);
INSERT INTO "auth_group_permissions" VALUES(5,1,144);
INSERT INTO "auth_group_permissions" VALUES(6,1,148);
INSERT INTO "auth_group_permissions" VALUES(7,1,36);
INSERT INTO "auth_group_permissions" VALUES(8,1,40);
INSERT INTO "auth_group_permissions" VALUES(9,1,44);
INSERT INTO "auth_group_permissions" VALUES(10,1,48);
INSERT INTO "auth_group_permissions" VALUES(11,1,52);
INSERT INTO "auth_group_permissions" VALUES(12,1,56);
INSERT INTO "auth_group_permissions" VALUES(13,1,60);
INSERT INTO "auth_group_permissions" VALUES(14,1,64);
INSERT INTO "auth_group_permissions" VALUES(15,1,68);
INSERT INTO "auth_group_permissions" VALUES(16,1,72);
INSERT INTO "auth_group_permissions" VALUES(17,1,76);
INSERT INTO "auth_group_permissions" VALUES(18,1,80);
INSERT INTO "auth_group_permissions" VALUES(19,1,84);
INSERT INTO "auth_group_permissions" VALUES(20,1,88);
INSERT INTO "auth_group_permissions" VALUES(21,1,92);
INSERT INTO "auth_group_permissions" VALUES(22,1,96);
INSERT INTO "auth_group_permissions" VALUES(23,1,100);
INSERT INTO "auth_group_permissions" VALUES(24,1,104);
INSERT INTO "auth_group_permissions" VALUES(25,1,108);
INSERT INTO "auth_group_permissions" VALUES(26,1,112);
INSERT INTO "auth_group_permissions" VALUES(27,1,116);
INSERT INTO "auth_group_permissions" VALUES(28,1,120);
INSERT INTO "auth_group_permissions" VALUES(29,1,124);
INSERT INTO "auth_group_permissions" VALUES(30,2,128);
INSERT INTO "auth_group_permissions" VALUES(31,2,132);
INSERT INTO "auth_group_permissions" VALUES(32,2,136);
INSERT INTO "auth_group_permissions" VALUES(33,2,140);
INSERT INTO "auth_group_permissions" VALUES(34,2,144);
INSERT INTO "auth_group_permissions" VALUES(35,2,148);
INSERT INTO "auth_group_permissions" VALUES(36,2,36);
INSERT INTO "auth_group_permissions" VALUES(37,2,40);
INSERT INTO "auth_group_permissions" VALUES(38,2,44);
INSERT INTO "auth_group_permissions" VALUES(39,2,48);
INSERT INTO "auth_group_permissions" VALUES(40,2,52);
INSERT INTO "auth_group_permissions" VALUES(41,2,56);
INSERT INTO "auth_group_permissions" VALUES(42,2,59);
INSERT INTO "auth_group_permissions" VALUES(43,2,60);
INSERT INTO "auth_group_permissions" VALUES(44,2,62);
INSERT INTO "auth_group_permissions" VALUES(45,2,64);
INSERT INTO "auth_group_permissions" VALUES(46,2,68);
INSERT INTO "auth_group_permissions" VALUES(47,2,72);
INSERT INTO "auth_group_permissions" VALUES(48,2,76);
INSERT INTO "auth_group_permissions" VALUES(49,2,80);
INSERT INTO "auth_group_permissions" VALUES(50,2,84);
INSERT INTO "auth_group_permissions" VALUES(51,2,88);
INSERT INTO "auth_group_permissions" VALUES(52,2,92);
INSERT INTO "auth_group_permissions" VALUES(53,2,96);
INSERT INTO "auth_group_permissions" VALUES(54,2,100);
INSERT INTO "auth_group_permissions" VALUES(55,2,104);
INSERT INTO "auth_group_permissions" VALUES(56,2,108);
INSERT INTO "auth_group_permissions" VALUES(57,2,112);
INSERT INTO "auth_group_permissions" VALUES(58,2,116);
INSERT INTO "auth_group_permissions" VALUES(59,2,120);
INSERT INTO "auth_group_permissions" VALUES(60,2,124);
INSERT INTO "auth_group_permissions" VALUES(61,3,128);
INSERT INTO "auth_group_permissions" VALUES(62,3,129);
INSERT INTO "auth_group_permissions" VALUES(63,3,132);
INSERT INTO "auth_group_permissions" VALUES(64,3,136);
INSERT INTO "auth_group_permissions" VALUES(65,3,140);
INSERT INTO "auth_group_permissions" VALUES(66,3,144);
INSERT INTO "auth_group_permissions" VALUES(67,3,148);
INSERT INTO "auth_group_permissions" VALUES(68,3,36);
INSERT INTO "auth_group_permissions" VALUES(69,3,40);
INSERT INTO "auth_group_permissions" VALUES(70,3,44);
INSERT INTO "auth_group_permissions" VALUES(71,3,48);
INSERT INTO "auth_group_permissions" VALUES(72,3,52);
INSERT INTO "auth_group_permissions" VALUES(73,3,56);
INSERT INTO "auth_group_permissions" VALUES(74,3,60);
INSERT INTO "auth_group_permissions" VALUES(75,3,64);
INSERT INTO "auth_group_permissions" VALUES(76,3,68);
INSERT INTO "auth_group_permissions" VALUES(77,3,72);
INSERT INTO "auth_group_permissions" VALUES(78,3,76);
INSERT INTO "auth_group_permissions" VALUES(79,3,77);
INSERT INTO "auth_group_permissions" VALUES(80,3,78);
INSERT INTO "auth_group_permissions" VALUES(81,3,80);
INSERT INTO "auth_group_permissions" VALUES(82,3,81);
INSERT INTO "auth_group_permissions" VALUES(83,3,84);
INSERT INTO "auth_group_permissions" VALUES(84,3,88);
INSERT INTO "auth_group_permissions" VALUES(85,3,89);
INSERT INTO "auth_group_permissions" VALUES(86,3,92);
INSERT INTO "auth_group_permissions" VALUES(87,3,93);
INSERT INTO "auth_group_permissions" VALUES(88,3,96);
INSERT INTO "auth_group_permissions" VALUES(89,3,100);
INSERT INTO "auth_group_permissions" VALUES(90,3,101);
INSERT INTO "auth_group_permissions" VALUES(91,3,102);
INSERT INTO "auth_group_permissions" VALUES(92,3,104);
INSERT INTO "auth_group_permissions" VALUES(93,3,108);
INSERT INTO "auth_group_permissions" VALUES(94,3,112);
INSERT INTO "auth_group_permissions" VALUES(95,3,116);
INSERT INTO "auth_group_permissions" VALUES(96,3,120);
INSERT INTO "auth_group_permissions" VALUES(97,3,124);
INSERT INTO "auth_group_permissions" VALUES(98,3,125);
INSERT INTO "auth_group_permissions" VALUES(99,4,33);
INSERT INTO "auth_group_permissions" VALUES(100,4,34);
INSERT INTO "auth_group_permissions" VALUES(101,4,35);
INSERT INTO "auth_group_permissions" VALUES(102,4,36);
INSERT INTO "auth_group_permissions" VALUES(103,4,37);
INSERT INTO "auth_group_permissions" VALUES(104,4,38);
INSERT INTO "auth_group_permissions" VALUES(105,4,39);
INSERT INTO "auth_group_permissions" VALUES(106,4,40);
INSERT INTO "auth_group_permissions" VALUES(107,4,41);
INSERT INTO "auth_group_permissions" VALUES(108,4,42);
INSERT INTO "auth_group_permissions" VALUES(109,4,43);
INSERT INTO "auth_group_permissions" VALUES(110,4,44);
INSERT INTO "auth_group_permissions" VALUES(111,4,45);
INSERT INTO "auth_group_permissions" VALUES(112,4,46);
INSERT INTO "auth_group_permissions" VALUES(113,4,47);
INSERT INTO "auth_group_permissions" VALUES(114,4,48);
INSERT INTO "auth_group_permissions" VALUES(115,4,49);
INSERT INTO "auth_group_permissions" VALUES(116,4,50);
INSERT INTO "auth_group_permissions" VALUES(117,4,51);
INSERT INTO "auth_group_permissions" VALUES(118,4,52);
INSERT INTO "auth_group_permissions" VALUES(119,4,53);
INSERT INTO "auth_group_permissions" VALUES(120,4,54);
INSERT INTO "auth_group_permissions" VALUES(121,4,55);
INSERT INTO "auth_group_permissions" VALUES(122,4,56);
INSERT INTO "auth_group_permissions" VALUES(123,4,57);
INSERT INTO "auth_group_permissions" VALUES(124,4,58);
INSERT INTO "auth_group_permissions" VALUES(125,4,59);
INSERT INTO "auth_group_permissions" VALUES(126,4,60);
INSERT INTO "auth_group_permissions" VALUES(127,4,61);
INSERT INTO "auth_group_permissions" VALUES(128,4,62);
INSERT INTO "auth_group_permissions" VALUES(129,4,63);
INSERT INTO "auth_group_permissions" VALUES(130,4,64);
INSERT INTO "auth_group_permissions" VALUES(131,4,65);
INSERT INTO "auth_group_permissions" VALUES(132,4,66);
INSERT INTO "auth_group_permissions" VALUES(133,4,67);
INSERT INTO "auth_group_permissions" VALUES(134,4,68);
INSERT INTO "auth_group_permissions" VALUES(135,4,69);
INSERT INTO "auth_group_permissions" VALUES(136,4,70);
INSERT INTO "auth_group_permissions" VALUES(137,4,71);
INSERT INTO "auth_group_permissions" VALUES(138,4,72);
INSERT INTO "auth_group_permissions" VALUES(139,4,73);
INSERT INTO "auth_group_permissions" VALUES(140,4,74);
INSERT INTO "auth_group_permissions" VALUES(141,4,75);
INSERT INTO "auth_group_permissions" VALUES(142,4,76);
INSERT INTO "auth_group_permissions" VALUES(143,4,77);
INSERT INTO "auth_group_permissions" VALUES(144,4,78);
INSERT INTO "auth_group_permissions" VALUES(145,4,79);
INSERT INTO "auth_group_permissions" VALUES(146,4,80);
INSERT INTO "auth_group_permissions" VALUES(147,4,81);
INSERT INTO "auth_group_permissions" VALUES(148,4,82);
INSERT INTO "auth_group_permissions" VALUES(149,4,83);
INSERT INTO "auth_group_permissions" VALUES(150,4,84);
INSERT INTO "auth_group_permissions" VALUES(151,4,85);
INSERT INTO "auth_group_permissions" VALUES(152,4,86);
INSERT INTO "auth_group_permissions" VALUES(153,4,87);
INSERT INTO "auth_group_permissions" VALUES(154,4,88);
INSERT INTO "auth_group_permissions" VALUES(155,4,89);
INSERT INTO "auth_group_permissions" VALUES(156,4,90);
INSERT INTO "auth_group_permissions" VALUES(157,4,91);
INSERT INTO "auth_group_permissions" VALUES(158,4,92);
INSERT INTO "auth_group_permissions" VALUES(159,4,93);
INSERT INTO "auth_group_permissions" VALUES(160,4,94);
INSERT INTO "auth_group_permissions" VALUES(161,4,95);
INSERT INTO "auth_group_permissions" VALUES(162,4,96);
INSERT INTO "auth_group_permissions" VALUES(163,4,97);
INSERT INTO "auth_group_permissions" VALUES(164,4,98);
INSERT INTO "auth_group_permissions" VALUES(165,4,99);
INSERT INTO "auth_group_permissions" VALUES(166,4,100);
INSERT INTO "auth_group_permissions" VALUES(167,4,101);
INSERT INTO "auth_group_permissions" VALUES(168,4,102);
INSERT INTO "auth_group_permissions" VALUES(169,4,103);
INSERT INTO "auth_group_permissions" VALUES(170,4,104);
INSERT INTO "auth_group_permissions" VALUES(171,4,105);
INSERT INTO "auth_group_permissions" VALUES(172,4,106);
INSERT INTO "auth_group_permissions" VALUES(173,4,107);
INSERT INTO "auth_group_permissions" VALUES(174,4,108);
INSERT INTO "auth_group_permissions" VALUES(175,4,109);
INSERT INTO "auth_group_permissions" VALUES(176,4,110);
INSERT INTO "auth_group_permissions" VALUES(177,4,111);
INSERT INTO "auth_group_permissions" VALUES(178,4,112);
INSERT INTO "auth_group_permissions" VALUES(179,4,113);
INSERT INTO "auth_group_permissions" VALUES(180,4,114);
INSERT INTO "auth_group_permissions" VALUES(181,4,115);
INSERT INTO "auth_group_permissions" VALUES(182,4,116);
INSERT INTO "auth_group_permissions" VALUES(183,4,117);
INSERT INTO "auth_group_permissions" VALUES(184,4,118);
INSERT INTO "auth_group_permissions" VALUES(185,4,119);
INSERT INTO "auth_group_permissions" VALUES(186,4,120);
INSERT INTO "auth_group_permissions" VALUES(187,4,121);
INSERT INTO "auth_group_permissions" VALUES(188,4,122);
INSERT INTO "auth_group_permissions" VALUES(189,4,123);
INSERT INTO "auth_group_permissions" VALUES(190,4,124);
INSERT INTO "auth_group_permissions" VALUES(191,4,125);
INSERT INTO "auth_group_permissions" VALUES(192,4,126);
INSERT INTO "auth_group_permissions" VALUES(193,4,127);
INSERT INTO "auth_group_permissions" VALUES(194,4,128);
INSERT INTO "auth_group_permissions" VALUES(195,4,129);
INSERT INTO "auth_group_permissions" VALUES(196,4,130);
INSERT INTO "auth_group_permissions" VALUES(197,4,131);
INSERT INTO "auth_group_permissions" VALUES(198,4,132);
INSERT INTO "auth_group_permissions" VALUES(199,4,133);
INSERT INTO "auth_group_permissions" VALUES(200,4,134);
INSERT INTO "auth_group_permissions" VALUES(201,4,135);
INSERT INTO "auth_group_permissions" VALUES(202,4,136);
INSERT INTO "auth_group_permissions" VALUES(203,4,137);
INSERT INTO "auth_group_permissions" VALUES(204,4,138);
INSERT INTO "auth_group_permissions" VALUES(205,4,139);
INSERT INTO "auth_group_permissions" VALUES(206,4,140);
INSERT INTO "auth_group_permissions" VALUES(207,4,141);
INSERT INTO "auth_group_permissions" VALUES(208,4,142);
INSERT INTO "auth_group_permissions" VALUES(209,4,143);
INSERT INTO "auth_group_permissions" VALUES(210,4,144);
INSERT INTO "auth_group_permissions" VALUES(211,4,145);
INSERT INTO "auth_group_permissions" VALUES(212,4,146);
INSERT INTO "auth_group_permissions" VALUES(213,4,147);
INSERT INTO "auth_group_permissions" VALUES(214,4,148);
CREATE TABLE "auth_permission" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "content_type_id" integer NOT NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "codename" varchar(100) NOT NULL, "name" varchar(255) NOT NULL);
INSERT INTO "auth_permission" VALUES(1,1,'add_logentry','Can add log entry');
INSERT INTO "auth_permission" VALUES(2,1,'change_logentry','Can change log entry');
INSERT INTO "auth_permission" VALUES(3,1,'delete_logentry','Can delete log entry');
INSERT INTO "auth_permission" VALUES(4,1,'view_logentry','Can view log entry');
INSERT INTO "auth_permission" VALUES(5,2,'add_permission','Can add permission');
INSERT INTO "auth_permission" VALUES(6,2,'change_permission','Can change permission');
INSERT INTO "auth_permission" VALUES(7,2,'delete_permission','Can delete permission');
INSERT INTO "auth_permission" VALUES(8,2,'view_permission','Can view permission');
INSERT INTO "auth_permission" VALUES(9,3,'add_group','Can add group');
INSERT INTO "auth_permission" VALUES(10,3,'change_group','Can change group');
INSERT INTO "auth_permission" VALUES(11,3,'delete_group','Can delete group');
INSERT INTO "auth_permission" VALUES(12,3,'view_group','Can view group');
INSERT INTO "auth_permission" VALUES(13,4,'add_contenttype','Can add content type');
INSERT INTO "auth_permission" VALUES(14,4,'change_contenttype','Can change content type');
INSERT INTO "auth_permission" VALUES(15,4,'delete_contenttype','Can delete content type');
INSERT INTO "auth_permission" VALUES(16,4,'view_contenttype','Can view content type');
INSERT INTO "auth_permission" VALUES(17,5,'add_session','Can add session');
INSERT INTO "auth_permission" VALUES(18,5,'change_session','Can change session');
INSERT INTO "auth_permission" VALUES(19,5,'delete_session','Can delete session');
INSERT INTO "auth_permission" VALUES(20,5,'view_session','Can view session');
INSERT INTO "auth_permission" VALUES(21,6,'add_emailaddress','Can add email address');
INSERT INTO "auth_permission" VALUES(22,6,'change_emailaddress','Can change email address');
INSERT INTO "auth_permission" VALUES(23,6,'delete_emailaddress','Can delete email address');
INSERT INTO "auth_permission" VALUES(24,6,'view_emailaddress','Can view email address');
INSERT INTO "auth_permission" VALUES(25,7,'add_emailconfirmation','Can add email confirmation');
INSERT INTO "auth_permission" VALUES(26,7,'change_emailconfirmation','Can change email confirmation');
INSERT INTO "auth_permission" VALUES(27,7,'delete_emailconfirmation','Can delete email confirmation');
INSERT INTO "auth_permission" VALUES(28,7,'view_emailconfirmation','Can view email confirmation');
INSERT INTO "auth_permission" VALUES(29,8,'add_authenticator','Can add authenticator');
INSERT INTO "auth_permission" VALUES(30,8,'change_authenticator','Can change authenticator');
INSERT INTO "auth_permission" VALUES(31,8,'delete_authenticator','Can delete authenticator');
INSERT INTO "auth_permission" VALUES(32,8,'view_authenticator','Can view authenticator');
INSERT INTO "auth_permission" VALUES(33,9,'add_catalogueepoch','Can add catalogue epoch');
INSERT INTO "auth_permission" VALUES(34,9,'change_catalogueepoch','Can change catalogue epoch');
INSERT INTO "auth_permission" VALUES(35,9,'delete_catalogueepoch','Can delete catalogue epoch');
INSERT INTO "auth_permission" VALUES(36,9,'view_catalogueepoch','Can view catalogue epoch');
INSERT INTO "auth_permission" VALUES(37,10,'add_tenant','Can add tenant');
INSERT INTO "auth_permission" VALUES(38,10,'change_tenant','Can change tenant');
INSERT INTO "auth_permission" VALUES(39,10,'delete_tenant','Can delete tenant');
INSERT INTO "auth_permission" VALUES(40,10,'view_tenant','Can view tenant');
INSERT INTO "auth_permission" VALUES(41,11,'add_user','Can add user');
INSERT INTO "auth_permission" VALUES(42,11,'change_user','Can change user');
INSERT INTO "auth_permission" VALUES(43,11,'delete_user','Can delete user');
INSERT INTO "auth_permission" VALUES(44,11,'view_user','Can view user');
INSERT INTO "auth_permission" VALUES(45,12,'add_signinlink','Can add sign in link');
INSERT INTO "auth_permission" VALUES(46,12,'change_signinlink','Can change sign in link');
INSERT INTO "auth_permission" VALUES(47,12,'delete_signinlink','Can delete sign in link');
INSERT INTO "auth_permission" VALUES(48,12,'view_signinlink','Can view sign in link');
INSERT INTO "auth_permission" VALUES(49,13,'add_project','Can add project');
INSERT INTO "auth_permission" VALUES(50,13,'change_project','Can change project');
INSERT INTO "auth_permission" VALUES(51,13,'delete_project','Can delete project');
INSERT INTO "auth_permission" VALUES(52,13,'view_project','Can view project');
INSERT INTO "auth_permission" VALUES(53,14,'add_membership','Can add membership');
INSERT INTO "auth_permission" VALUES(54,14,'change_membership','Can change membership');
INSERT INTO "auth_permission" VALUES(55,14,'delete_membership','Can delete membership');
INSERT INTO "auth_permission" VALUES(56,14,'view_membership','Can view membership');
INSERT INTO "auth_permission" VALUES(57,15,'add_invitation','Can add invitation');
INSERT INTO "auth_permission" VALUES(58,15,'change_invitation','Can change invitation');
INSERT INTO "auth_permission" VALUES(59,15,'delete_invitation','Can delete invitation');
INSERT INTO "auth_permission" VALUES(60,15,'view_invitation','Can view invitation');
INSERT INTO "auth_permission" VALUES(61,16,'add_apikey','Can add API key');
INSERT INTO "auth_permission" VALUES(62,16,'change_apikey','Can change API key');
INSERT INTO "auth_permission" VALUES(63,16,'delete_apikey','Can delete API key');
INSERT INTO "auth_permission" VALUES(64,16,'view_apikey','Can view API key');
INSERT INTO "auth_permission" VALUES(65,17,'add_tenantepoch','Can add tenant epoch');
INSERT INTO "auth_permission" VALUES(66,17,'change_tenantepoch','Can change tenant epoch');
INSERT INTO "auth_permission" VALUES(67,17,'delete_tenantepoch','Can delete tenant epoch');
INSERT INTO "auth_permission" VALUES(68,17,'view_tenantepoch','Can view tenant epoch');
INSERT INTO "auth_permission" VALUES(69,18,'add_auditevent','Can add audit event');
INSERT INTO "auth_permission" VALUES(70,18,'change_auditevent','Can change audit event');
INSERT INTO "auth_permission" VALUES(71,18,'delete_auditevent','Can delete audit event');
INSERT INTO "auth_permission" VALUES(72,18,'view_auditevent','Can view audit event');
INSERT INTO "auth_permission" VALUES(73,19,'add_refusalcount','Can add refusal');
INSERT INTO "auth_permission" VALUES(74,19,'change_refusalcount','Can change refusal');
INSERT INTO "auth_permission" VALUES(75,19,'delete_refusalcount','Can delete refusal');
INSERT INTO "auth_permission" VALUES(76,19,'view_refusalcount','Can view refusal');
INSERT INTO "auth_permission" VALUES(77,20,'add_plan','Can add plan');
INSERT INTO "auth_permission" VALUES(78,20,'change_plan','Can change plan');
INSERT INTO "auth_permission" VALUES(79,20,'delete_plan','Can delete plan');
INSERT INTO "auth_permission" VALUES(80,20,'view_plan','Can view plan');
INSERT INTO "auth_permission" VALUES(81,21,'add_ratecard','Can add rate card');
INSERT INTO "auth_permission" VALUES(82,21,'change_ratecard','Can change rate card');
INSERT INTO "auth_permission" VALUES(83,21,'delete_ratecard','Can delete rate card');
INSERT INTO "auth_permission" VALUES(84,21,'view_ratecard','Can view rate card');
INSERT INTO "auth_permission" VALUES(85,22,'add_outboxevent','Can add outbox event');
INSERT INTO "auth_permission" VALUES(86,22,'change_outboxevent','Can change outbox event');
INSERT INTO "auth_permission" VALUES(87,22,'delete_outboxevent','Can delete outbox event');
INSERT INTO "auth_permission" VALUES(88,22,'view_outboxevent','Can view outbox event');
INSERT INTO "auth_permission" VALUES(89,23,'add_planversion','Can add plan version');
INSERT INTO "auth_permission" VALUES(90,23,'change_planversion','Can change plan version');
INSERT INTO "auth_permission" VALUES(91,23,'delete_planversion','Can delete plan version');
INSERT INTO "auth_permission" VALUES(92,23,'view_planversion','Can view plan version');
INSERT INTO "auth_permission" VALUES(93,24,'add_ratecardversion','Can add rate card version');
INSERT INTO "auth_permission" VALUES(94,24,'change_ratecardversion','Can change rate card version');
INSERT INTO "auth_permission" VALUES(95,24,'delete_ratecardversion','Can delete rate card version');
INSERT INTO "auth_permission" VALUES(96,24,'view_ratecardversion','Can view rate card version');
INSERT INTO "auth_permission" VALUES(97,25,'add_rate','Can add rate');
INSERT INTO "auth_permission" VALUES(98,25,'change_rate','Can change rate');
INSERT INTO "auth_permission" VALUES(99,25,'delete_rate','Can delete rate');
INSERT INTO "auth_permission" VALUES(100,25,'view_rate','Can view rate');
INSERT INTO "auth_permission" VALUES(101,26,'add_subscription','Can add subscription');
INSERT INTO "auth_permission" VALUES(102,26,'change_subscription','Can change subscription');
INSERT INTO "auth_permission" VALUES(103,26,'delete_subscription','Can delete subscription');
INSERT INTO "auth_permission" VALUES(104,26,'view_subscription','Can view subscription');
INSERT INTO "auth_permission" VALUES(105,27,'add_usagerecord','Can add usage record');
INSERT INTO "auth_permission" VALUES(106,27,'change_usagerecord','Can change usage record');
INSERT INTO "auth_permission" VALUES(107,27,'delete_usagerecord','Can delete usage record');
INSERT INTO "auth_permission" VALUES(108,27,'view_usagerecord','Can view usage record');
INSERT INTO "auth_permission" VALUES(109,28,'add_usagerollup','Can add usage rollup');
INSERT INTO "auth_permission" VALUES(110,28,'change_usagerollup','Can change usage rollup');
INSERT INTO "auth_permission" VALUES(111,28,'delete_usagerollup','Can delete usage rollup');
INSERT INTO "auth_permission" VALUES(112,28,'view_usagerollup','Can view usage rollup');
INSERT INTO "auth_permission" VALUES(113,29,'add_wallet','Can add wallet');
INSERT INTO "auth_permission" VALUES(114,29,'change_wallet','Can change wallet');
INSERT INTO "auth_permission" VALUES(115,29,'delete_wallet','Can delete wallet');
INSERT INTO "auth_permission" VALUES(116,29,'view_wallet','Can view wallet');
INSERT INTO "auth_permission" VALUES(117,30,'add_ledgeraccount','Can add ledger account');
INSERT INTO "auth_permission" VALUES(118,30,'change_ledgeraccount','Can change ledger account');
INSERT INTO "auth_permission" VALUES(119,30,'delete_ledgeraccount','Can delete ledger account');
INSERT INTO "auth_permission" VALUES(120,30,'view_ledgeraccount','Can view ledger account');
INSERT INTO "auth_permission" VALUES(121,31,'add_hold','Can add hold');
INSERT INTO "auth_permission" VALUES(122,31,'change_hold','Can change hold');
INSERT INTO "auth_permission" VALUES(123,31,'delete_hold','Can delete hold');
INSERT INTO "auth_permission" VALUES(124,31,'view_hold','Can view hold');
INSERT INTO "auth_permission" VALUES(125,32,'add_creditgrant','Can add credit grant');
INSERT INTO "auth_permission" VALUES(126,32,'change_creditgrant','Can change credit grant');
INSERT INTO "auth_permission" VALUES(127,32,'delete_creditgrant','Can delete credit grant');
INSERT INTO "auth_permission" VALUES(128,32,'view_creditgrant','Can view credit grant');
INSERT INTO "auth_permission" VALUES(129,33,'add_ledgertransfer','Can add ledger transfer');
INSERT INTO "auth_permission" VALUES(130,33,'change_ledgertransfer','Can change ledger transfer');
INSERT INTO "auth_permission" VALUES(131,33,'delete_ledgertransfer','Can delete ledger transfer');
INSERT INTO "auth_permission" VALUES(132,33,'view_ledgertransfer','Can view ledger transfer');
INSERT INTO "auth_permission" VALUES(133,34,'add_publicmodel','Can add public model');
INSERT INTO "auth_permission" VALUES(134,34,'change_publicmodel','Can change public model');
INSERT INTO "auth_permission" VALUES(135,34,'delete_publicmodel','Can delete public model');
INSERT INTO "auth_permission" VALUES(136,34,'view_publicmodel','Can view public model');
INSERT INTO "auth_permission" VALUES(137,35,'add_routerule','Can add route rule');
INSERT INTO "auth_permission" VALUES(138,35,'change_routerule','Can change route rule');
INSERT INTO "auth_permission" VALUES(139,35,'delete_routerule','Can delete route rule');
INSERT INTO "auth_permission" VALUES(140,35,'view_routerule','Can view route rule');
INSERT INTO "auth_permission" VALUES(141,36,'add_deployment','Can add deployment');
INSERT INTO "auth_permission" VALUES(142,36,'change_deployment','Can change deployment');
INSERT INTO "auth_permission" VALUES(143,36,'delete_deployment','Can delete deployment');
INSERT INTO "auth_permission" VALUES(144,36,'view_deployment','Can view deployment');
INSERT INTO "auth_permission" VALUES(145,37,'add_routetarget','Can add route target');
INSERT INTO "auth_permission" VALUES(146,37,'change_routetarget','Can change route target');
INSERT INTO "auth_permission" VALUES(147,37,'delete_routetarget','Can delete route target');
INSERT INTO "auth_permission" VALUES(148,37,'view_routetarget','Can view route target');
CREATE TABLE "billing_creditgrant" ("id" char(32) NOT NULL PRIMARY KEY, "kind" varchar(12) NOT NULL, "amount" bigint NOT NULL, "remaining" bigint NOT NULL, "priority" smallint NOT NULL, "effective_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "expires_at" datetime NULL, "expired_at" datetime NULL, "voided_at" datetime NULL, "source" varchar(200) NOT NULL, "paid_amount" bigint NULL, "currency" varchar(3) NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "wallet_id" char(32) NOT NULL REFERENCES "billing_wallet" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "credit_grant_amount_positive" CHECK ("amount" > 0), CONSTRAINT "credit_grant_remaining_in_amount" CHECK (("remaining" >= 0 AND "remaining" <= ("amount"))));
INSERT INTO "billing_creditgrant" VALUES('01a2009fe647725e9475848773a718c1','plan',100000000,99954295,50,'2026-11-22 00:20:08.903000','2026-12-22 00:20:08.893979',NULL,NULL,'month:01a2009f-e61a-7832-a193-063cb14d24ad:2026-11-22T00:20:08.893979+00:00',NULL,'','2026-11-22 00:20:08.903','01a2009fe633749d8e732b525f3f2354');
INSERT INTO "billing_creditgrant" VALUES('01a2009fe6707ebb9e2df1f98352d8de','plan',20000000000,19999987226,50,'2026-11-22 00:20:08.944000','2026-12-22 00:20:08.937947',NULL,NULL,'month:01a2009f-e65a-73b6-9149-39f6da6b1f1a:2026-11-22T00:20:08.937947+00:00',NULL,'','2026-11-22 00:20:08.945','01a2009fe6657cf08c9e36fbe18665b5');
INSERT INTO "billing_creditgrant" VALUES('01a2009fe69e73a7b95035a069050da2','plan',100000000000,99999967986,50,'2026-11-22 00:20:08.990000','2026-12-22 00:20:08.977950',NULL,NULL,'month:01a2009f-e67e-729f-a276-7beb269c5356:2026-11-22T00:20:08.977950+00:00',NULL,'','2026-11-22 00:20:08.990','01a2009fe68e788fa433181d1ec6d1f8');
INSERT INTO "billing_creditgrant" VALUES('01a2009ffcb87a9fae733de02fad0b65','plan',20000000000,19999981117,50,'2026-11-22 00:20:14.648000','2026-12-22 00:20:14.631147',NULL,NULL,'month:01a2009f-fc9e-7b86-b706-fae9c73127cf:2026-11-22T00:20:14.631147+00:00',NULL,'','2026-11-22 00:20:14.649','01a2009ffca174fbabe912e42b66d6e7');
INSERT INTO "billing_creditgrant" VALUES('01a2009fff4b7d859d8481d40f21832a','promotional',5000000,5000000,50,'2026-11-22 00:20:15.307000',NULL,NULL,NULL,'',NULL,'','2026-11-22 00:20:15.308','01a2009ffca174fbabe912e42b66d6e7');
CREATE TABLE "billing_hold" ("id" char(32) NOT NULL PRIMARY KEY, "tenant" char(32) NOT NULL, "project" char(32) NOT NULL, "api_key" char(32) NULL, "user" char(32) NULL, "model" varchar(120) NOT NULL, "deployment" char(32) NOT NULL, "card_version" char(32) NOT NULL, "multiplier_bp" integer NOT NULL, "state" smallint NOT NULL, "amount" bigint NOT NULL, "facts" text NOT NULL CHECK ((JSON_VALID("facts") OR "facts" IS NULL)), "checkpoint" text NOT NULL CHECK ((JSON_VALID("checkpoint") OR "checkpoint" IS NULL)), "owner" char(32) NOT NULL, "reserved_at" datetime NOT NULL, "lease_until" datetime NOT NULL, "orphaned_at" datetime NULL, "wallet_id" char(32) NOT NULL, CONSTRAINT "hold_amount_not_negative" CHECK ("amount" >= 0));
CREATE TABLE "billing_ledgeraccount" ("id" char(32) NOT NULL PRIMARY KEY, "kind" varchar(20) NOT NULL, "wallet_id" char(32) NULL REFERENCES "billing_wallet" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "ledger_account_once_per_wallet" UNIQUE ("kind", "wallet_id"), CONSTRAINT "ledger_account_wallet_iff_kind" CHECK ((("kind" = 'wallet' AND NOT ("wallet_id" IS NULL)) OR (NOT ("kind" = 'wallet') AND "wallet_id" IS NULL))));
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe632779ea76840f0aa00a4bb','issuance_paid',NULL);
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe63277fbb7fb11dc5a1a6952','issuance_promo',NULL);
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe632781b94c7371f711c3aeb','issuance_plan',NULL);
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe63278338472c7ddd19e8dab','usage',NULL);
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe632784ab8fc63fb12f92285','breakage',NULL);
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe6327860bd8288fa644c218f','adjustment',NULL);
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe6347c76a56a6200c9755c79','wallet','01a2009fe633749d8e732b525f3f2354');
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe6667e90ad90c5f1d60d72c9','wallet','01a2009fe6657cf08c9e36fbe18665b5');
INSERT INTO "billing_ledgeraccount" VALUES('01a2009fe68f79c7ae1cdead01db4c9a','wallet','01a2009fe68e788fa433181d1ec6d1f8');
INSERT INTO "billing_ledgeraccount" VALUES('01a2009ffca67da581300eb4678abdbb','wallet','01a2009ffca174fbabe912e42b66d6e7');
CREATE TABLE "billing_ledgertransfer" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "amount" bigint NOT NULL, "code" smallint NOT NULL, "request" char(32) NULL, "order" smallint NOT NULL, "key" varchar(120) NULL, "booked_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "effective_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "actor" varchar(120) NOT NULL, "reason" varchar(200) NOT NULL, "credit_id" char(32) NOT NULL, "debit_id" char(32) NOT NULL, "grant_id" char(32) NULL, CONSTRAINT "ledger_transfer_amount_positive" CHECK ("amount" > 0), CONSTRAINT "ledger_transfer_two_accounts" CHECK (NOT ("debit_id" = ("credit_id"))), CONSTRAINT "ledger_transfer_once_per_request" UNIQUE ("request", "code", "order"));
INSERT INTO "billing_ledgertransfer" VALUES(1,100000000,1,NULL,0,'month:01a2009f-e61a-7832-a193-063cb14d24ad:2026-11-22T00:20:08.893979+00:00','2026-11-22 00:20:08.904','2026-11-22 00:20:08.904','sluice','Free v2, a month','01a2009fe6347c76a56a6200c9755c79','01a2009fe632781b94c7371f711c3aeb','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(2,20000000000,1,NULL,0,'month:01a2009f-e65a-73b6-9149-39f6da6b1f1a:2026-11-22T00:20:08.937947+00:00','2026-11-22 00:20:08.950','2026-11-22 00:20:08.950','sluice','Business v2, a month','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe632781b94c7371f711c3aeb','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(3,100000000000,1,NULL,0,'month:01a2009f-e67e-729f-a276-7beb269c5356:2026-11-22T00:20:08.977950+00:00','2026-11-22 00:20:08.991','2026-11-22 00:20:08.991','sluice','Max v2, a month','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe632781b94c7371f711c3aeb','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(4,20000000000,1,NULL,0,'month:01a2009f-fc9e-7b86-b706-fae9c73127cf:2026-11-22T00:20:14.631147+00:00','2026-11-22 00:20:14.654','2026-11-22 00:20:14.654','sluice','Business v2, a month','01a2009ffca67da581300eb4678abdbb','01a2009fe632781b94c7371f711c3aeb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(5,5000000,1,NULL,0,'fixture:grant','2026-11-22 00:20:15.308','2026-11-22 00:20:15.308','operator@example.com','welcome','01a2009ffca67da581300eb4678abdbb','01a2009fe63277fbb7fb11dc5a1a6952','01a2009fff4b7d859d8481d40f21832a');
INSERT INTO "billing_ledgertransfer" VALUES(6,1000,6,NULL,0,'fixture:adjust','2026-11-22 00:20:15.316','2026-11-22 00:20:15.316','operator@example.com','a correction','01a2009fe6327860bd8288fa644c218f','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(7,121,2,'01a200a0009b75b1a921ddd55521ac0b',0,NULL,'2026-11-22 00:20:15.677','2026-11-22 00:20:15.676000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(8,85,2,'01a200a000bf7dd389f55e69a7039eab',0,NULL,'2026-11-22 00:20:15.688','2026-11-22 00:20:15.688000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(9,85,2,'01a200a000ca7358956afda95d0bc2a4',0,NULL,'2026-11-22 00:20:15.698','2026-11-22 00:20:15.698000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(10,332,2,'01a200a000e87b23ba9e3e3e2557e86a',0,NULL,'2026-11-22 00:20:15.747','2026-11-22 00:20:15.747000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(11,453,2,'01a200a000e9776399ef156e16872593',0,NULL,'2026-11-22 00:20:15.782','2026-11-22 00:20:15.781000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(12,722,2,'01a200a000e9783f86726f6a31b7d88d',0,NULL,'2026-11-22 00:20:15.787','2026-11-22 00:20:15.787000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(13,330,2,'01a200a00128740c9b75bcab5a1fa1e3',0,NULL,'2026-11-22 00:20:15.805','2026-11-22 00:20:15.804000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(14,933,2,'01a200a001207cdca2269a088822effe',0,NULL,'2026-11-22 00:20:15.810','2026-11-22 00:20:15.810000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(15,675,2,'01a200a001357cdaa1d75da4c941f5e1',0,NULL,'2026-11-22 00:20:15.810','2026-11-22 00:20:15.810000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(16,877,2,'01a200a0013d747ab81fb9498fd50240',0,NULL,'2026-11-22 00:20:15.818','2026-11-22 00:20:15.818000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(17,909,2,'01a200a0014d7911ab71f03db3703aeb',0,NULL,'2026-11-22 00:20:15.827','2026-11-22 00:20:15.827000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(18,2595,2,'01a200a000e778dbaeda19b805fad1e4',0,NULL,'2026-11-22 00:20:15.838','2026-11-22 00:20:15.838000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(19,1421,2,'01a200a000e87773af02d9065f79b840',0,NULL,'2026-11-22 00:20:15.874','2026-11-22 00:20:15.874000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(20,1735,2,'01a200a0017975c3bfce0ca04c91f7b8',0,NULL,'2026-11-22 00:20:15.885','2026-11-22 00:20:15.885000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(21,1995,2,'01a200a0015772bbba4b2337ad195568',0,NULL,'2026-11-22 00:20:15.898','2026-11-22 00:20:15.898000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(22,120,2,'01a200a0019d78bb879d2f67f318c683',0,NULL,'2026-11-22 00:20:15.909','2026-11-22 00:20:15.908000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(23,1535,2,'01a200a000e875b6af9689ff61c80bf3',0,NULL,'2026-11-22 00:20:15.924','2026-11-22 00:20:15.924000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(24,1347,2,'01a200a001a77876af2ee873ada34502',0,NULL,'2026-11-22 00:20:15.942','2026-11-22 00:20:15.942000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(25,2364,2,'01a200a000e977b6b58c95667408c7e4',0,NULL,'2026-11-22 00:20:15.948','2026-11-22 00:20:15.947000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(26,131,2,'01a200a001c378f4b1874f28376a5ec0',0,NULL,'2026-11-22 00:20:15.962','2026-11-22 00:20:15.958000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(27,1891,2,'01a200a0012a75e088dda67526af37a0',0,NULL,'2026-11-22 00:20:16.026','2026-11-22 00:20:16.026000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(28,2473,2,'01a200a000e97629a4ac4b07163e56ae',0,NULL,'2026-11-22 00:20:16.041','2026-11-22 00:20:16.040000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(29,1246,2,'01a200a002227efe8e3dd7ea19b04dcf',0,NULL,'2026-11-22 00:20:16.055','2026-11-22 00:20:16.054000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(30,813,2,'01a200a001d179168474ceb390ea9a4b',0,NULL,'2026-11-22 00:20:16.062','2026-11-22 00:20:16.062000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(31,2590,2,'01a200a0018a7263bc2c16533f03a826',0,NULL,'2026-11-22 00:20:16.067','2026-11-22 00:20:16.066000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(32,811,2,'01a200a0023172858be98776dfcafb53',0,NULL,'2026-11-22 00:20:16.073','2026-11-22 00:20:16.072000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(33,2739,2,'01a200a000e977f5a2ed765096804a38',0,NULL,'2026-11-22 00:20:16.094','2026-11-22 00:20:16.094000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(34,2543,2,'01a200a000fd71b1b60e113af5343ac9',0,NULL,'2026-11-22 00:20:16.094','2026-11-22 00:20:16.094000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(35,1536,2,'01a200a0024d761a876fe4d5881f9b80',0,NULL,'2026-11-22 00:20:16.099','2026-11-22 00:20:16.099000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(36,2854,2,'01a200a001d272b0a96b383a517f7ff4',0,NULL,'2026-11-22 00:20:16.208','2026-11-22 00:20:16.207000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(37,4853,2,'01a200a000e976c49b8b2d2f990db0bd',0,NULL,'2026-11-22 00:20:16.341','2026-11-22 00:20:16.340000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(38,4041,2,'01a200a001627155b61d763a6187c58c',0,NULL,'2026-11-22 00:20:16.351','2026-11-22 00:20:16.350000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(39,2277,2,'01a200a0024c7768afac38dda3205b4f',0,NULL,'2026-11-22 00:20:16.356','2026-11-22 00:20:16.356000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6667e90ad90c5f1d60d72c9','01a2009fe6707ebb9e2df1f98352d8de');
INSERT INTO "billing_ledgertransfer" VALUES(40,5897,2,'01a200a000e87841961416939313c22b',0,NULL,'2026-11-22 00:20:16.374','2026-11-22 00:20:16.374000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(41,5483,2,'01a200a001277023aadb0b158e1afb95',0,NULL,'2026-11-22 00:20:16.448','2026-11-22 00:20:16.448000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(42,5973,2,'01a200a000e9771d9c07b8ea1d9f8051',0,NULL,'2026-11-22 00:20:16.465','2026-11-22 00:20:16.465000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(43,6421,2,'01a200a000e877f8b33e59dad5561a76',0,NULL,'2026-11-22 00:20:16.508','2026-11-22 00:20:16.508000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(44,5721,2,'01a200a001bd72269b40d40d3d8f3eb3',0,NULL,'2026-11-22 00:20:16.594','2026-11-22 00:20:16.594000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
INSERT INTO "billing_ledgertransfer" VALUES(45,5196,2,'01a200a00245775eb94ea3cd2a8a08a2',0,NULL,'2026-11-22 00:20:16.612','2026-11-22 00:20:16.612000','','','01a2009fe63278338472c7ddd19e8dab','01a2009ffca67da581300eb4678abdbb','01a2009ffcb87a9fae733de02fad0b65');
INSERT INTO "billing_ledgertransfer" VALUES(46,5783,2,'01a200a002307c5b9c26995eb808138d',0,NULL,'2026-11-22 00:20:16.696','2026-11-22 00:20:16.696000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(47,8983,2,'01a200a000e876fbac3b7021e20a96d8',0,NULL,'2026-11-22 00:20:16.772','2026-11-22 00:20:16.771000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe6347c76a56a6200c9755c79','01a2009fe647725e9475848773a718c1');
INSERT INTO "billing_ledgertransfer" VALUES(48,9487,2,'01a200a001487a55a55d099cc84ed26b',0,NULL,'2026-11-22 00:20:16.875','2026-11-22 00:20:16.874000','','','01a2009fe63278338472c7ddd19e8dab','01a2009fe68f79c7ae1cdead01db4c9a','01a2009fe69e73a7b95035a069050da2');
CREATE TABLE "billing_outboxevent" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "topic" varchar(40) NOT NULL, "payload" text NOT NULL CHECK ((JSON_VALID("payload") OR "payload" IS NULL)), "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "attempts" smallint NOT NULL);
CREATE TABLE "billing_plan" ("id" char(32) NOT NULL PRIMARY KEY, "slug" varchar(40) NOT NULL UNIQUE, "name" varchar(80) NOT NULL, "is_offered" bool NOT NULL);
INSERT INTO "billing_plan" VALUES('01a2009fe5ad796c9d457561af2b77ed','free','Free',1);
INSERT INTO "billing_plan" VALUES('01a2009fe5b875adb61be305fd674c40','business','Business',1);
INSERT INTO "billing_plan" VALUES('01a2009fe5bc7074a0d3d119cec1af33','max','Max',1);
CREATE TABLE "billing_planversion" ("id" char(32) NOT NULL PRIMARY KEY, "number" integer unsigned NOT NULL CHECK ("number" >= 0), "request_limit" bigint unsigned NOT NULL CHECK ("request_limit" >= 0), "request_period_s" integer unsigned NOT NULL CHECK ("request_period_s" >= 0), "request_burst" bigint unsigned NOT NULL CHECK ("request_burst" >= 0), "credit_limit" bigint unsigned NOT NULL CHECK ("credit_limit" >= 0), "credit_period_s" integer unsigned NOT NULL CHECK ("credit_period_s" >= 0), "credit_burst" bigint unsigned NOT NULL CHECK ("credit_burst" >= 0), "concurrency" integer unsigned NOT NULL CHECK ("concurrency" >= 0), "weight" integer unsigned NOT NULL CHECK ("weight" >= 0), "slice_tokens" integer unsigned NOT NULL CHECK ("slice_tokens" >= 0), "monthly_credits" bigint unsigned NOT NULL CHECK ("monthly_credits" >= 0), "multiplier_bp" integer unsigned NOT NULL CHECK ("multiplier_bp" >= 0), "overage" varchar(10) NOT NULL, "overdraft_limit" bigint unsigned NOT NULL CHECK ("overdraft_limit" >= 0), "allowed_models" text NOT NULL CHECK ((JSON_VALID("allowed_models") OR "allowed_models" IS NULL)), "default_task" varchar(40) NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "plan_id" char(32) NOT NULL REFERENCES "billing_plan" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "plan_version_once_per_number" UNIQUE ("plan_id", "number"), CONSTRAINT "plan_version_limits_positive" CHECK (("request_limit" > 0 AND "request_period_s" > 0 AND "request_burst" > 0 AND "credit_limit" > 0 AND "credit_period_s" > 0 AND "credit_burst" > 0 AND "concurrency" > 0 AND "weight" > 0 AND "slice_tokens" > 0)));
INSERT INTO "billing_planversion" VALUES('01a2009fe5b07f5fb52085b05b5e31ca',1,30,60,10,10000000,60,20000000,4,1000,128,100000000,10000,'block',0,'["smollm2-135m-instruct", "all-minilm-l6-v2"]','chat','2026-11-22 00:20:08.759','01a2009fe5ad796c9d457561af2b77ed');
INSERT INTO "billing_planversion" VALUES('01a2009fe5b97a7a887984343aca3966',1,600,60,1200,2000000000,60,6000000000,64,4000,256,20000000000,10000,'block',0,'[]','chat','2026-11-22 00:20:08.763','01a2009fe5b875adb61be305fd674c40');
INSERT INTO "billing_planversion" VALUES('01a2009fe5bd737b9965620cf9723a4c',1,60,60,60,20000000000,18000,20000000000,16,2000,1024,100000000000,10000,'block',0,'[]','chat','2026-11-22 00:20:08.770','01a2009fe5bc7074a0d3d119cec1af33');
INSERT INTO "billing_planversion" VALUES('01a2009fe5cd79eea2d49748739a0b1b',2,1000000,60,1000000,1000000000000,60,1000000000000,64,1000,128,100000000,10000,'block',0,'[]','chat','2026-11-22 00:20:08.783','01a2009fe5ad796c9d457561af2b77ed');
INSERT INTO "billing_planversion" VALUES('01a2009fe5d279e6b53260d4afbdd0b8',2,1000000,60,1000000,1000000000000,60,1000000000000,64,4000,256,20000000000,10000,'block',0,'[]','chat','2026-11-22 00:20:08.787','01a2009fe5b875adb61be305fd674c40');
INSERT INTO "billing_planversion" VALUES('01a2009fe5da7d949b204d709a0df87a',2,1000000,60,1000000,1000000000000,18000,1000000000000,64,2000,1024,100000000000,10000,'block',0,'[]','chat','2026-11-22 00:20:08.796','01a2009fe5bc7074a0d3d119cec1af33');
CREATE TABLE "billing_rate" ("id" char(32) NOT NULL PRIMARY KEY, "tier_min_context" integer unsigned NOT NULL CHECK ("tier_min_context" >= 0), "usage_class" varchar(20) NOT NULL, "rate" bigint NOT NULL, "version_id" char(32) NOT NULL REFERENCES "billing_ratecardversion" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "rate_once_per_tier_and_class" UNIQUE ("version_id", "tier_min_context", "usage_class"), CONSTRAINT "rate_not_negative" CHECK ("rate" >= 0));
INSERT INTO "billing_rate" VALUES('01a2009fe5e27fbaad35baf8c74e57a6',0,'input',3000000,'01a2009fe5e07d6fb60f0e146ab864b7');
INSERT INTO "billing_rate" VALUES('01a2009fe5e37026acaf4eb1ecfcca23',0,'cache_read',700000,'01a2009fe5e07d6fb60f0e146ab864b7');
INSERT INTO "billing_rate" VALUES('01a2009fe5e3705184dbc348f335576e',0,'cache_write_short',3000000,'01a2009fe5e07d6fb60f0e146ab864b7');
INSERT INTO "billing_rate" VALUES('01a2009fe5e37074a2dddbd2754a0d8b',0,'cache_write_long',3000000,'01a2009fe5e07d6fb60f0e146ab864b7');
INSERT INTO "billing_rate" VALUES('01a2009fe5e3709595e757f8af847bfa',0,'output',11000000,'01a2009fe5e07d6fb60f0e146ab864b7');
INSERT INTO "billing_rate" VALUES('01a2009fe5e370b4b22f4fb15980000e',0,'reasoning',11000000,'01a2009fe5e07d6fb60f0e146ab864b7');
INSERT INTO "billing_rate" VALUES('01a2009fe5f779169cd7bb541ebd98fb',0,'input',1300000,'01a2009fe5f6711a9639d47d7d613a22');
INSERT INTO "billing_rate" VALUES('01a2009fe5f77967b5d0303f8086b86d',0,'cache_read',1300000,'01a2009fe5f6711a9639d47d7d613a22');
INSERT INTO "billing_rate" VALUES('01a2009fe5f7798d8dd39db991571c32',0,'cache_write_short',1300000,'01a2009fe5f6711a9639d47d7d613a22');
INSERT INTO "billing_rate" VALUES('01a2009fe5f779adb4e9f44a0dc485d2',0,'cache_write_long',1300000,'01a2009fe5f6711a9639d47d7d613a22');
INSERT INTO "billing_rate" VALUES('01a2009fe5f779cb98100afe878342c2',0,'output',0,'01a2009fe5f6711a9639d47d7d613a22');
INSERT INTO "billing_rate" VALUES('01a2009fe5f779e78f9665a56208907e',0,'reasoning',0,'01a2009fe5f6711a9639d47d7d613a22');
INSERT INTO "billing_rate" VALUES('01a2009ffaf47ca38dba0601672c19e0',0,'input',10000000,'01a2009ffaed73ec9f38c5b0719e578b');
INSERT INTO "billing_rate" VALUES('01a2009ffaf47d309575879c8c500c95',0,'cache_read',1000000,'01a2009ffaed73ec9f38c5b0719e578b');
INSERT INTO "billing_rate" VALUES('01a2009ffaf47d648cb0ac1125e9a75c',0,'cache_write_short',10000000,'01a2009ffaed73ec9f38c5b0719e578b');
INSERT INTO "billing_rate" VALUES('01a2009ffaf47d8a9699d2a423a81dc6',0,'cache_write_long',10000000,'01a2009ffaed73ec9f38c5b0719e578b');
INSERT INTO "billing_rate" VALUES('01a2009ffaf47db7a510bc132693446d',0,'output',40000000,'01a2009ffaed73ec9f38c5b0719e578b');
INSERT INTO "billing_rate" VALUES('01a2009ffaf47de1b0a53d1a39bf9a71',0,'reasoning',40000000,'01a2009ffaed73ec9f38c5b0719e578b');
INSERT INTO "billing_rate" VALUES('01a2009ffaf8781a9ea0bfc52ff71750',0,'input',2000000,'01a2009ffaf772c6882f811ae17cd254');
INSERT INTO "billing_rate" VALUES('01a2009ffaf8785a83c8e62be76b9f55',0,'cache_read',200000,'01a2009ffaf772c6882f811ae17cd254');
INSERT INTO "billing_rate" VALUES('01a2009ffaf8788091e0733c2068717f',0,'cache_write_short',2000000,'01a2009ffaf772c6882f811ae17cd254');
INSERT INTO "billing_rate" VALUES('01a2009ffaf8789f957c46669e8229f7',0,'cache_write_long',2000000,'01a2009ffaf772c6882f811ae17cd254');
INSERT INTO "billing_rate" VALUES('01a2009ffaf878bbb6434339914feb4f',0,'output',0,'01a2009ffaf772c6882f811ae17cd254');
INSERT INTO "billing_rate" VALUES('01a2009ffaf878d79da93a0ea3dadbdf',0,'reasoning',0,'01a2009ffaf772c6882f811ae17cd254');
CREATE TABLE "billing_ratecard" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(100) NOT NULL UNIQUE);
INSERT INTO "billing_ratecard" VALUES('01a2009fe5e1740aa3817ca62eaa5fc1','fake-chat');
INSERT INTO "billing_ratecard" VALUES('01a2009fe5f675ac91ffef7ecf49458e','fake-embed');
INSERT INTO "billing_ratecard" VALUES('01a2009ffaf2739e81805d549895762e','smollm2-135m-instruct');
INSERT INTO "billing_ratecard" VALUES('01a2009ffaf775e8ad761f02a406fd93','all-minilm-l6-v2');
CREATE TABLE "billing_ratecardversion" ("id" char(32) NOT NULL PRIMARY KEY, "effective_from" datetime NOT NULL, "published_at" datetime NULL, "request_fee" bigint NOT NULL, "note" varchar(200) NOT NULL, "card_id" char(32) NOT NULL REFERENCES "billing_ratecard" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "rate_card_version_once_per_moment" UNIQUE ("card_id", "effective_from"), CONSTRAINT "rate_card_version_fee_not_negative" CHECK ("request_fee" >= 0));
INSERT INTO "billing_ratecardversion" VALUES('01a2009fe5e07d6fb60f0e146ab864b7','2026-11-22 00:20:08.800000','2026-11-22 00:20:08.800000',0,'','01a2009fe5e1740aa3817ca62eaa5fc1');
INSERT INTO "billing_ratecardversion" VALUES('01a2009fe5f6711a9639d47d7d613a22','2026-11-22 00:20:08.822000','2026-11-22 00:20:08.822000',0,'','01a2009fe5f675ac91ffef7ecf49458e');
INSERT INTO "billing_ratecardversion" VALUES('01a2009ffaed73ec9f38c5b0719e578b','2026-11-22 00:20:14.189000','2026-11-22 00:20:14.189000',0,'shipped with Sluice','01a2009ffaf2739e81805d549895762e');
INSERT INTO "billing_ratecardversion" VALUES('01a2009ffaf772c6882f811ae17cd254','2026-11-22 00:20:14.199000','2026-11-22 00:20:14.199000',0,'shipped with Sluice','01a2009ffaf775e8ad761f02a406fd93');
CREATE TABLE "billing_subscription" ("id" char(32) NOT NULL PRIMARY KEY, "state" varchar(10) NOT NULL, "anchor" datetime NOT NULL, "time_zone" varchar(60) NOT NULL, "granted_until" datetime NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "ended_at" datetime NULL, "next_version_id" char(32) NULL REFERENCES "billing_planversion" ("id") DEFERRABLE INITIALLY DEFERRED, "tenant_id" char(32) NOT NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, "version_id" char(32) NOT NULL REFERENCES "billing_planversion" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "billing_subscription" VALUES('01a2009fe6417428bec988dc0c066389','active','2026-11-22 00:20:08.893979','UTC','2026-12-22 00:20:08.893979','2026-11-22 00:20:08.897',NULL,NULL,'01a2009fe61a7832a193063cb14d24ad','01a2009fe5cd79eea2d49748739a0b1b');
INSERT INTO "billing_subscription" VALUES('01a2009fe66c7435b1fb68d2845d6e68','active','2026-11-22 00:20:08.937947','UTC','2026-12-22 00:20:08.937947','2026-11-22 00:20:08.940',NULL,NULL,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe5d279e6b53260d4afbdd0b8');
INSERT INTO "billing_subscription" VALUES('01a2009fe69473c9995a0dcfd71395d9','active','2026-11-22 00:20:08.977950','UTC','2026-12-22 00:20:08.977950','2026-11-22 00:20:08.980',NULL,NULL,'01a2009fe67e729fa2767beb269c5356','01a2009fe5da7d949b204d709a0df87a');
INSERT INTO "billing_subscription" VALUES('01a2009ffcae7dcfa974c76e945a146b','active','2026-11-22 00:20:14.631147','UTC','2026-12-22 00:20:14.631147','2026-11-22 00:20:14.639',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf','01a2009fe5d279e6b53260d4afbdd0b8');
CREATE TABLE "billing_usagerecord" ("id" char(32) NOT NULL PRIMARY KEY, "day" date NOT NULL, "request" char(32) NOT NULL, "revision" smallint NOT NULL, "tenant" char(32) NOT NULL, "project" char(32) NOT NULL, "api_key" char(32) NULL, "user" char(32) NULL, "end_user" varchar(64) NOT NULL, "wallet" char(32) NOT NULL, "model" varchar(120) NOT NULL, "deployment" char(32) NOT NULL, "endpoint" varchar(40) NOT NULL, "task" varchar(40) NOT NULL, "route" text NOT NULL CHECK ((JSON_VALID("route") OR "route" IS NULL)), "input_tokens" integer NOT NULL, "cache_read_tokens" integer NOT NULL, "cache_write_short_tokens" integer NOT NULL, "cache_write_long_tokens" integer NOT NULL, "output_tokens" integer NOT NULL, "reasoning_tokens" integer NOT NULL, "card_version" char(32) NOT NULL, "multiplier_bp" integer NOT NULL, "formula" smallint NOT NULL, "charge" bigint NOT NULL, "held" bigint NOT NULL, "exact" bool NOT NULL, "finish" varchar(40) NOT NULL, "ttft_ms" integer NULL, "duration_ms" integer NULL, "reserved_at" datetime NOT NULL, "settled_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "waived" bool NOT NULL, CONSTRAINT "usage_record_once_per_revision" UNIQUE ("day", "request", "revision"), CONSTRAINT "usage_record_charge_not_negative" CHECK ("charge" >= 0));
INSERT INTO "billing_usagerecord" VALUES('01a200a0009b75b1a921ddd55521ac0b','2026-11-22','01a200a0009b75b1a921ddd55521ac0b',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',22,0,0,0,5,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,121,121,1,'stop',11,16,'2026-11-22 00:20:15.663000','2026-11-22 00:20:15.676000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000bf7dd389f55e69a7039eab','2026-11-22','01a200a000bf7dd389f55e69a7039eab',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',6,16,0,0,5,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,85,121,1,'stop',3,8,'2026-11-22 00:20:15.680000','2026-11-22 00:20:15.688000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000ca7358956afda95d0bc2a4','2026-11-22','01a200a000ca7358956afda95d0bc2a4',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',6,16,0,0,5,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,85,121,1,'stop',3,8,'2026-11-22 00:20:15.690000','2026-11-22 00:20:15.698000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e87b23ba9e3e3e2557e86a','2026-11-22','01a200a000e87b23ba9e3e3e2557e86a',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-embed','1534d10af93b471294956f403ea31837','embeddings','embedding','{"model":"fake-embed","deployment":"fake-embed","task":"embedding","task_source":"endpoint","rule":"embeddings","reason":"Rule \u201cembeddings\u201d matched: task embedding (from the endpoint), plan business.","candidates":[{"model":"fake-embed","deployment":"fake-embed","rejected":""}]}',255,0,0,0,0,0,'01a2009fe5f6711a9639d47d7d613a22',10000,1,332,332,1,'stop',23,23,'2026-11-22 00:20:15.733000','2026-11-22 00:20:15.747000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e9776399ef156e16872593','2026-11-22','01a200a000e9776399ef156e16872593',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-embed','1534d10af93b471294956f403ea31837','embeddings','embedding','{"model":"fake-embed","deployment":"fake-embed","task":"embedding","task_source":"endpoint","rule":"embeddings","reason":"Rule \u201cembeddings\u201d matched: task embedding (from the endpoint), plan free.","candidates":[{"model":"fake-embed","deployment":"fake-embed","rejected":""}]}',348,0,0,0,0,0,'01a2009fe5f6711a9639d47d7d613a22',10000,1,453,453,1,'stop',39,39,'2026-11-22 00:20:15.743000','2026-11-22 00:20:15.781000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e9783f86726f6a31b7d88d','2026-11-22','01a200a000e9783f86726f6a31b7d88d',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan max.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',171,0,0,0,19,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,722,3120,1,'cancelled',38,45,'2026-11-22 00:20:15.743000','2026-11-22 00:20:15.787000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a00128740c9b75bcab5a1fa1e3','2026-11-22','01a200a00128740c9b75bcab5a1fa1e3',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',99,0,0,0,3,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,330,3113,1,'cancelled',12,19,'2026-11-22 00:20:15.787000','2026-11-22 00:20:15.804000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001207cdca2269a088822effe','2026-11-22','01a200a001207cdca2269a088822effe',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan business.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',289,0,0,0,6,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,933,3430,1,'cancelled',13,25,'2026-11-22 00:20:15.787000','2026-11-22 00:20:15.810000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001357cdaa1d75da4c941f5e1','2026-11-22','01a200a001357cdaa1d75da4c941f5e1',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-embed','1534d10af93b471294956f403ea31837','embeddings','embedding','{"model":"fake-embed","deployment":"fake-embed","task":"embedding","task_source":"endpoint","rule":"embeddings","reason":"Rule \u201cembeddings\u201d matched: task embedding (from the endpoint), plan free.","candidates":[{"model":"fake-embed","deployment":"fake-embed","rejected":""}]}',519,0,0,0,0,0,'01a2009fe5f6711a9639d47d7d613a22',10000,1,675,675,1,'stop',9,10,'2026-11-22 00:20:15.799000','2026-11-22 00:20:15.810000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0013d747ab81fb9498fd50240','2026-11-22','01a200a0013d747ab81fb9498fd50240',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-embed','1534d10af93b471294956f403ea31837','embeddings','embedding','{"model":"fake-embed","deployment":"fake-embed","task":"embedding","task_source":"endpoint","rule":"embeddings","reason":"Rule \u201cembeddings\u201d matched: task embedding (from the endpoint), plan business.","candidates":[{"model":"fake-embed","deployment":"fake-embed","rejected":""}]}',674,0,0,0,0,0,'01a2009fe5f6711a9639d47d7d613a22',10000,1,877,877,1,'stop',11,13,'2026-11-22 00:20:15.810000','2026-11-22 00:20:15.818000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0014d7911ab71f03db3703aeb','2026-11-22','01a200a0014d7911ab71f03db3703aeb',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-embed','1534d10af93b471294956f403ea31837','embeddings','embedding','{"model":"fake-embed","deployment":"fake-embed","task":"embedding","task_source":"endpoint","rule":"embeddings","reason":"Rule \u201cembeddings\u201d matched: task embedding (from the endpoint), plan business.","candidates":[{"model":"fake-embed","deployment":"fake-embed","rejected":""}]}',699,0,0,0,0,0,'01a2009fe5f6711a9639d47d7d613a22',10000,1,909,909,1,'stop',4,6,'2026-11-22 00:20:15.822000','2026-11-22 00:20:15.827000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e778dbaeda19b805fad1e4','2026-11-22','01a200a000e778dbaeda19b805fad1e4',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan business.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',645,0,0,0,60,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2595,2595,1,'length',26,118,'2026-11-22 00:20:15.733000','2026-11-22 00:20:15.838000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e87773af02d9065f79b840','2026-11-22','01a200a000e87773af02d9065f79b840',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan max.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',195,0,0,0,76,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1421,3379,1,'cancelled',38,132,'2026-11-22 00:20:15.743000','2026-11-22 00:20:15.874000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0017975c3bfce0ca04c91f7b8','2026-11-22','01a200a0017975c3bfce0ca04c91f7b8',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',571,0,0,0,2,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1735,3121,1,'cancelled',17,20,'2026-11-22 00:20:15.868000','2026-11-22 00:20:15.885000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0015772bbba4b2337ad195568','2026-11-22','01a200a0015772bbba4b2337ad195568',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan max.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',544,0,0,0,33,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1995,1995,1,'length',8,66,'2026-11-22 00:20:15.831000','2026-11-22 00:20:15.898000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0019d78bb879d2f67f318c683','2026-11-22','01a200a0019d78bb879d2f67f318c683',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-embed','1534d10af93b471294956f403ea31837','embeddings','embedding','{"model":"fake-embed","deployment":"fake-embed","task":"embedding","task_source":"endpoint","rule":"embeddings","reason":"Rule \u201cembeddings\u201d matched: task embedding (from the endpoint), plan business.","candidates":[{"model":"fake-embed","deployment":"fake-embed","rejected":""}]}',92,0,0,0,0,0,'01a2009fe5f6711a9639d47d7d613a22',10000,1,120,120,1,'stop',7,7,'2026-11-22 00:20:15.904000','2026-11-22 00:20:15.908000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e875b6af9689ff61c80bf3','2026-11-22','01a200a000e875b6af9689ff61c80bf3',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',123,0,0,0,106,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1535,11633,1,'stop',38,186,'2026-11-22 00:20:15.743000','2026-11-22 00:20:15.924000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001a77876af2ee873ada34502','2026-11-22','01a200a001a77876af2ee873ada34502',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',427,0,0,0,6,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1347,2689,1,'cancelled',19,27,'2026-11-22 00:20:15.914000','2026-11-22 00:20:15.942000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e977b6b58c95667408c7e4','2026-11-22','01a200a000e977b6b58c95667408c7e4',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan max.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',370,0,0,0,114,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2364,2364,1,'length',38,208,'2026-11-22 00:20:15.743000','2026-11-22 00:20:15.947000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001c378f4b1874f28376a5ec0','2026-11-22','01a200a001c378f4b1874f28376a5ec0',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',29,0,0,0,4,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,131,2903,1,'cancelled',9,16,'2026-11-22 00:20:15.942000','2026-11-22 00:20:15.958000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0012a75e088dda67526af37a0','2026-11-22','01a200a0012a75e088dda67526af37a0',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',135,16,0,0,134,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1891,4674,1,'stop',10,235,'2026-11-22 00:20:15.787000','2026-11-22 00:20:16.026000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e97629a4ac4b07163e56ae','2026-11-22','01a200a000e97629a4ac4b07163e56ae',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan max.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',190,0,0,0,173,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2473,2704,1,'stop',38,304,'2026-11-22 00:20:15.743000','2026-11-22 00:20:16.040000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a002227efe8e3dd7ea19b04dcf','2026-11-22','01a200a002227efe8e3dd7ea19b04dcf',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',408,0,0,0,2,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1246,4040,1,'cancelled',12,16,'2026-11-22 00:20:16.036000','2026-11-22 00:20:16.054000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001d179168474ceb390ea9a4b','2026-11-22','01a200a001d179168474ceb390ea9a4b',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan max.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',58,16,0,0,57,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,813,11486,1,'stop',7,104,'2026-11-22 00:20:15.954000','2026-11-22 00:20:16.062000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0018a7263bc2c16533f03a826','2026-11-22','01a200a0018a7263bc2c16533f03a826',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan business.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',504,0,0,0,98,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2590,2590,1,'length',7,181,'2026-11-22 00:20:15.883000','2026-11-22 00:20:16.066000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0023172858be98776dfcafb53','2026-11-22','01a200a0023172858be98776dfcafb53',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',248,16,0,0,5,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,811,2200,1,'cancelled',15,23,'2026-11-22 00:20:16.054000','2026-11-22 00:20:16.072000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e977f5a2ed765096804a38','2026-11-22','01a200a000e977f5a2ed765096804a38',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan free.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',209,0,0,0,192,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2739,4741,1,'stop',39,350,'2026-11-22 00:20:15.743000','2026-11-22 00:20:16.094000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000fd71b1b60e113af5343ac9','2026-11-22','01a200a000fd71b1b60e113af5343ac9',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',195,0,0,0,178,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2543,9033,1,'stop',39,350,'2026-11-22 00:20:15.747000','2026-11-22 00:20:16.094000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0024d761a876fe4d5881f9b80','2026-11-22','01a200a0024d761a876fe4d5881f9b80',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',512,0,0,0,0,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,1536,4388,1,'cancelled',NULL,21,'2026-11-22 00:20:16.084000','2026-11-22 00:20:16.099000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001d272b0a96b383a517f7ff4','2026-11-22','01a200a001d272b0a96b383a517f7ff4',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',449,0,0,0,137,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2854,9795,1,'cancelled',17,252,'2026-11-22 00:20:15.958000','2026-11-22 00:20:16.207000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e976c49b8b2d2f990db0bd','2026-11-22','01a200a000e976c49b8b2d2f990db0bd',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',360,0,0,0,343,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,4853,10936,1,'stop',39,605,'2026-11-22 00:20:15.743000','2026-11-22 00:20:16.340000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001627155b61d763a6187c58c','2026-11-22','01a200a001627155b61d763a6187c58c',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan free.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',302,0,0,0,285,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,4041,10762,1,'stop',6,505,'2026-11-22 00:20:15.843000','2026-11-22 00:20:16.350000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a0024c7768afac38dda3205b4f','2026-11-22','01a200a0024c7768afac38dda3205b4f',0,'01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4',NULL,'','01a2009fe6657cf08c9e36fbe18665b5','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan business.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',176,0,0,0,159,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,2277,3718,1,'stop',10,280,'2026-11-22 00:20:16.077000','2026-11-22 00:20:16.356000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e87841961416939313c22b','2026-11-22','01a200a000e87841961416939313c22b',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan business.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',609,0,0,0,370,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,5897,5897,1,'length',27,653,'2026-11-22 00:20:15.733000','2026-11-22 00:20:16.374000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001277023aadb0b158e1afb95','2026-11-22','01a200a001277023aadb0b158e1afb95',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',405,0,0,0,388,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,5483,12479,1,'stop',13,664,'2026-11-22 00:20:15.787000','2026-11-22 00:20:16.448000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e9771d9c07b8ea1d9f8051','2026-11-22','01a200a000e9771d9c07b8ea1d9f8051',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',440,0,0,0,423,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,5973,11176,1,'stop',39,725,'2026-11-22 00:20:15.743000','2026-11-22 00:20:16.465000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e877f8b33e59dad5561a76','2026-11-22','01a200a000e877f8b33e59dad5561a76',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan free.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',472,0,0,0,455,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,6421,11272,1,'stop',39,773,'2026-11-22 00:20:15.743000','2026-11-22 00:20:16.508000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001bd72269b40d40d3d8f3eb3','2026-11-22','01a200a001bd72269b40d40d3d8f3eb3',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan max.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',422,0,0,0,405,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,5721,12530,1,'stop',12,658,'2026-11-22 00:20:15.935000','2026-11-22 00:20:16.594000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a00245775eb94ea3cd2a8a08a2','2026-11-22','01a200a00245775eb94ea3cd2a8a08a2',0,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2',NULL,'','01a2009ffca174fbabe912e42b66d6e7','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan business.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',474,16,0,0,342,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,5196,5196,1,'length',10,542,'2026-11-22 00:20:16.072000','2026-11-22 00:20:16.612000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a002307c5b9c26995eb808138d','2026-11-22','01a200a002307c5b9c26995eb808138d',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','chat.completions','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"general chat","reason":"Rule \u201cgeneral chat\u201d matched: task chat (the plan''s default), plan free.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',413,16,0,0,412,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,5783,11140,1,'stop',8,646,'2026-11-22 00:20:16.050000','2026-11-22 00:20:16.696000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a000e876fbac3b7021e20a96d8','2026-11-22','01a200a000e876fbac3b7021e20a96d8',0,'01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474',NULL,'','01a2009fe633749d8e732b525f3f2354','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',655,0,0,0,638,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,8983,11821,1,'stop',41,1038,'2026-11-22 00:20:15.743000','2026-11-22 00:20:16.771000',0);
INSERT INTO "billing_usagerecord" VALUES('01a200a001487a55a55d099cc84ed26b','2026-11-22','01a200a001487a55a55d099cc84ed26b',0,'01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140',NULL,'','01a2009fe68e788fa433181d1ec6d1f8','fake-chat','e513332859ef4c2ab20d7b4a87feacd5','responses','chat','{"model":"fake-chat","deployment":"fake-chat","task":"chat","task_source":"plan","rule":"","reason":"You asked for fake-chat.","candidates":[{"model":"fake-chat","deployment":"fake-chat","rejected":""}]}',691,0,0,0,674,0,'01a2009fe5e07d6fb60f0e146ab864b7',10000,1,9487,35865,1,'stop',9,1058,'2026-11-22 00:20:15.818000','2026-11-22 00:20:16.874000',0);
CREATE TABLE "billing_usagerollup" ("id" char(32) NOT NULL PRIMARY KEY, "hour" datetime NOT NULL, "tenant" char(32) NOT NULL, "project" char(32) NOT NULL, "api_key" char(32) NULL, "model" varchar(120) NOT NULL, "requests" bigint NOT NULL, "input_tokens" bigint NOT NULL, "cache_read_tokens" bigint NOT NULL, "output_tokens" bigint NOT NULL, "charge" bigint NOT NULL);
INSERT INTO "billing_usagerollup" VALUES('01a200a002de7077a3c9d0d5daa51862','2026-11-22 00:00:00','01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474','fake-chat',11,4232,48,2895,44577);
INSERT INTO "billing_usagerollup" VALUES('01a200a002de71e1aefd29287d5e6854','2026-11-22 00:00:00','01a2009fe61a7832a193063cb14d24ad','01a2009fe6227019950fcd9f21c3d536','01a2009fe6577161b8a26c8655dc0474','fake-embed',2,867,0,0,1128);
INSERT INTO "billing_usagerollup" VALUES('01a200a002de79a2bb50cff7a5438654','2026-11-22 00:00:00','01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4','fake-chat',8,2466,0,409,11897);
INSERT INTO "billing_usagerollup" VALUES('01a200a002de7a39820db45374140b80','2026-11-22 00:00:00','01a2009fe65a73b6914939f6da6b1f1a','01a2009fe65d7f8897f709b466b073c0','01a2009fe67a7b4baf823a3b7b07b0d4','fake-embed',1,674,0,0,877);
INSERT INTO "billing_usagerollup" VALUES('01a200a002de7aada40789c3b1fd8557','2026-11-22 00:00:00','01a2009fe67e729fa2767beb269c5356','01a2009fe6817f39ae739239028d847e','01a2009fe6aa7163be10974c27009140','fake-chat',10,3169,16,2045,32014);
INSERT INTO "billing_usagerollup" VALUES('01a200a002de7b1e957810999d75b473','2026-11-22 00:00:00','01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2','fake-chat',7,1957,48,965,16522);
INSERT INTO "billing_usagerollup" VALUES('01a200a002de7b8e9579c96f74214480','2026-11-22 00:00:00','01a2009ffc9e7b86b706fae9c73127cf','01a2009ffc9f7da2a2795fd80c030101','01a2009fff37750c87010b98c43c58b2','fake-embed',3,1046,0,0,1361);
CREATE TABLE "billing_wallet" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(40) NOT NULL, "posted" bigint NOT NULL, "held" bigint NOT NULL, "overdraft_limit" bigint NOT NULL, "version" bigint NOT NULL, "next_grant_change_at" datetime NULL, "state" varchar(10) NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "tenant_id" char(32) NOT NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "wallet_once_per_tenant_and_name" UNIQUE ("tenant_id", "name"), CONSTRAINT "wallet_held_not_negative" CHECK ("held" >= 0), CONSTRAINT "wallet_overdraft_limit_not_negative" CHECK ("overdraft_limit" >= 0));
INSERT INTO "billing_wallet" VALUES('01a2009fe633749d8e732b525f3f2354','main',99954295,0,0,35,'2026-12-22 00:20:08.893979','open','2026-11-22 00:20:08.883','01a2009fe61a7832a193063cb14d24ad');
INSERT INTO "billing_wallet" VALUES('01a2009fe6657cf08c9e36fbe18665b5','main',19999987226,0,0,20,'2026-12-22 00:20:08.937947','open','2026-11-22 00:20:08.933','01a2009fe65a73b6914939f6da6b1f1a');
INSERT INTO "billing_wallet" VALUES('01a2009fe68e788fa433181d1ec6d1f8','main',99999967986,0,0,19,'2026-12-22 00:20:08.977950','open','2026-11-22 00:20:08.974','01a2009fe67e729fa2767beb269c5356');
INSERT INTO "billing_wallet" VALUES('01a2009ffca174fbabe912e42b66d6e7','main',20004981117,0,0,25,'2026-12-22 00:20:14.631147','open','2026-11-22 00:20:14.625','01a2009ffc9e7b86b706fae9c73127cf');
CREATE TABLE "django_admin_log" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "object_id" text NULL, "object_repr" varchar(200) NOT NULL, "action_flag" smallint unsigned NOT NULL CHECK ("action_flag" >= 0), "change_message" text NOT NULL, "content_type_id" integer NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" char(32) NOT NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED, "action_time" datetime NOT NULL);
CREATE TABLE "django_content_type" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app_label" varchar(100) NOT NULL, "model" varchar(100) NOT NULL);
INSERT INTO "django_content_type" VALUES(1,'admin','logentry');
INSERT INTO "django_content_type" VALUES(2,'auth','permission');
INSERT INTO "django_content_type" VALUES(3,'auth','group');
INSERT INTO "django_content_type" VALUES(4,'contenttypes','contenttype');
INSERT INTO "django_content_type" VALUES(5,'sessions','session');
INSERT INTO "django_content_type" VALUES(6,'account','emailaddress');
INSERT INTO "django_content_type" VALUES(7,'account','emailconfirmation');
INSERT INTO "django_content_type" VALUES(8,'mfa','authenticator');
INSERT INTO "django_content_type" VALUES(9,'gateway','catalogueepoch');
INSERT INTO "django_content_type" VALUES(10,'gateway','tenant');
INSERT INTO "django_content_type" VALUES(11,'gateway','user');
INSERT INTO "django_content_type" VALUES(12,'gateway','signinlink');
INSERT INTO "django_content_type" VALUES(13,'gateway','project');
INSERT INTO "django_content_type" VALUES(14,'gateway','membership');
INSERT INTO "django_content_type" VALUES(15,'gateway','invitation');
INSERT INTO "django_content_type" VALUES(16,'gateway','apikey');
INSERT INTO "django_content_type" VALUES(17,'gateway','tenantepoch');
INSERT INTO "django_content_type" VALUES(18,'gateway','auditevent');
INSERT INTO "django_content_type" VALUES(19,'gateway','refusalcount');
INSERT INTO "django_content_type" VALUES(20,'billing','plan');
INSERT INTO "django_content_type" VALUES(21,'billing','ratecard');
INSERT INTO "django_content_type" VALUES(22,'billing','outboxevent');
INSERT INTO "django_content_type" VALUES(23,'billing','planversion');
INSERT INTO "django_content_type" VALUES(24,'billing','ratecardversion');
INSERT INTO "django_content_type" VALUES(25,'billing','rate');
INSERT INTO "django_content_type" VALUES(26,'billing','subscription');
INSERT INTO "django_content_type" VALUES(27,'billing','usagerecord');
INSERT INTO "django_content_type" VALUES(28,'billing','usagerollup');
INSERT INTO "django_content_type" VALUES(29,'billing','wallet');
INSERT INTO "django_content_type" VALUES(30,'billing','ledgeraccount');
INSERT INTO "django_content_type" VALUES(31,'billing','hold');
INSERT INTO "django_content_type" VALUES(32,'billing','creditgrant');
INSERT INTO "django_content_type" VALUES(33,'billing','ledgertransfer');
INSERT INTO "django_content_type" VALUES(34,'routing','publicmodel');
INSERT INTO "django_content_type" VALUES(35,'routing','routerule');
INSERT INTO "django_content_type" VALUES(36,'routing','deployment');
INSERT INTO "django_content_type" VALUES(37,'routing','routetarget');
CREATE TABLE "django_migrations" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app" varchar(255) NOT NULL, "name" varchar(255) NOT NULL, "applied" datetime NOT NULL);
INSERT INTO "django_migrations" VALUES(1,'contenttypes','0001_initial','2026-11-22 00:20:06.320978');
INSERT INTO "django_migrations" VALUES(2,'contenttypes','0002_remove_content_type_name','2026-11-22 00:20:06.328292');
INSERT INTO "django_migrations" VALUES(3,'auth','0001_initial','2026-11-22 00:20:06.340342');
INSERT INTO "django_migrations" VALUES(4,'auth','0002_alter_permission_name_max_length','2026-11-22 00:20:06.348886');
INSERT INTO "django_migrations" VALUES(5,'auth','0003_alter_user_email_max_length','2026-11-22 00:20:06.357167');
INSERT INTO "django_migrations" VALUES(6,'auth','0004_alter_user_username_opts','2026-11-22 00:20:06.363950');
INSERT INTO "django_migrations" VALUES(7,'auth','0005_alter_user_last_login_null','2026-11-22 00:20:06.367756');
INSERT INTO "django_migrations" VALUES(8,'auth','0006_require_contenttypes_0002','2026-11-22 00:20:06.370060');
INSERT INTO "django_migrations" VALUES(9,'auth','0007_alter_validators_add_error_messages','2026-11-22 00:20:06.375960');
INSERT INTO "django_migrations" VALUES(10,'auth','0008_alter_user_username_max_length','2026-11-22 00:20:06.379712');
INSERT INTO "django_migrations" VALUES(11,'auth','0009_alter_user_last_name_max_length','2026-11-22 00:20:06.383692');
INSERT INTO "django_migrations" VALUES(12,'auth','0010_alter_group_name_max_length','2026-11-22 00:20:06.388101');
INSERT INTO "django_migrations" VALUES(13,'auth','0011_update_proxy_permissions','2026-11-22 00:20:06.391926');
INSERT INTO "django_migrations" VALUES(14,'auth','0012_alter_user_first_name_max_length','2026-11-22 00:20:06.395695');
INSERT INTO "django_migrations" VALUES(15,'gateway','0001_initial','2026-11-22 00:20:06.470586');
INSERT INTO "django_migrations" VALUES(16,'account','0001_initial','2026-11-22 00:20:06.535753');
INSERT INTO "django_migrations" VALUES(17,'account','0002_email_max_length','2026-11-22 00:20:06.552392');
INSERT INTO "django_migrations" VALUES(18,'account','0003_alter_emailaddress_create_unique_verified_email','2026-11-22 00:20:06.569728');
INSERT INTO "django_migrations" VALUES(19,'account','0004_alter_emailaddress_drop_unique_email','2026-11-22 00:20:06.581604');
INSERT INTO "django_migrations" VALUES(20,'account','0005_emailaddress_idx_upper_email','2026-11-22 00:20:06.595211');
INSERT INTO "django_migrations" VALUES(21,'account','0006_emailaddress_lower','2026-11-22 00:20:06.605534');
INSERT INTO "django_migrations" VALUES(22,'account','0007_emailaddress_idx_email','2026-11-22 00:20:06.622374');
INSERT INTO "django_migrations" VALUES(23,'account','0008_emailaddress_unique_primary_email_fixup','2026-11-22 00:20:06.632115');
INSERT INTO "django_migrations" VALUES(24,'account','0009_emailaddress_unique_primary_email','2026-11-22 00:20:06.641773');
INSERT INTO "django_migrations" VALUES(25,'admin','0001_initial','2026-11-22 00:20:06.654016');
INSERT INTO "django_migrations" VALUES(26,'admin','0002_logentry_remove_auto_add','2026-11-22 00:20:06.663838');
INSERT INTO "django_migrations" VALUES(27,'admin','0003_logentry_add_action_flag_choices','2026-11-22 00:20:06.669831');
INSERT INTO "django_migrations" VALUES(28,'billing','0001_initial','2026-11-22 00:20:07.007495');
INSERT INTO "django_migrations" VALUES(29,'billing','0002_usage_waived','2026-11-22 00:20:07.023393');
INSERT INTO "django_migrations" VALUES(30,'gateway','0002_proved_addresses','2026-11-22 00:20:07.048000');
INSERT INTO "django_migrations" VALUES(31,'gateway','0003_explicit_scopes','2026-11-22 00:20:07.106001');
INSERT INTO "django_migrations" VALUES(32,'gateway','0004_tenant_epoch','2026-11-22 00:20:07.118421');
INSERT INTO "django_migrations" VALUES(33,'gateway','0005_audit_trail','2026-11-22 00:20:07.154115');
INSERT INTO "django_migrations" VALUES(34,'gateway','0006_no_stores_prompts','2026-11-22 00:20:07.172771');
INSERT INTO "django_migrations" VALUES(35,'gateway','0007_refusals','2026-11-22 00:20:07.202080');
INSERT INTO "django_migrations" VALUES(36,'mfa','0001_initial','2026-11-22 00:20:07.238271');
INSERT INTO "django_migrations" VALUES(37,'mfa','0002_authenticator_timestamps','2026-11-22 00:20:07.274782');
INSERT INTO "django_migrations" VALUES(38,'mfa','0003_authenticator_type_uniq','2026-11-22 00:20:07.313095');
INSERT INTO "django_migrations" VALUES(39,'routing','0001_initial','2026-11-22 00:20:07.330076');
INSERT INTO "django_migrations" VALUES(40,'routing','0002_no_replicas','2026-11-22 00:20:07.343896');
INSERT INTO "django_migrations" VALUES(41,'routing','0003_no_schema_rules','2026-11-22 00:20:07.352190');
INSERT INTO "django_migrations" VALUES(42,'sessions','0001_initial','2026-11-22 00:20:07.370073');
CREATE TABLE "django_session" ("session_key" varchar(40) NOT NULL PRIMARY KEY, "session_data" text NOT NULL, "expire_date" datetime NOT NULL);
INSERT INTO "django_session" VALUES('vky3i8c3x3vexjwu565fc5mxsrh1bt8l','.eJxVjMsOgjAURP-layEtfbt07zeQe29bQQ01FBKN8d8tCQud3WTOmTfrYV2Gfi1x7sfAjowL6Dj3qUmosLFa8ga8qpWMQA8WldLs8Ksh0C1OmxuuMF1yS3la5hHbDWn3tbTnHOL9tLN_BwOUodpEhroA0SWZBE8uKI0SIVqyJhkndDDOGwpoU0DQNnbCa2mkSkZJ8mo7LbGUMU99fD7G-cWOUlSC13y-069KhA:1xUvJX:FmN0XFnle4wS3d_XrN2VprChb6y9HL8wZYAK_7deDS0','2036-11-19 00:20:15.338717');
CREATE TABLE "gateway_apikey" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(120) NOT NULL, "prefix" varchar(16) NOT NULL, "last_four" varchar(4) NOT NULL, "digest" varchar(64) NOT NULL UNIQUE, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "expires_at" datetime NULL, "revoked_at" datetime NULL, "last_used_at" datetime NULL, "created_by_id" char(32) NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED, "project_id" char(32) NOT NULL REFERENCES "gateway_project" ("id") DEFERRABLE INITIALLY DEFERRED, "tenant_id" char(32) NOT NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, "scopes" text NOT NULL CHECK ((JSON_VALID("scopes") OR "scopes" IS NULL)), "parent_id" char(32) NULL REFERENCES "gateway_apikey" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "gateway_apikey" VALUES('01a2009fe6577161b8a26c8655dc0474','stack','sk-sluice-wnip','m6wo','b48fb2966527bdecf86e20b51acc13a8ede95e470dfb7cbed108195aeb0230b2','2026-11-22 00:20:08.919',NULL,NULL,'2026-11-22 00:20:17.601182',NULL,'01a2009fe6227019950fcd9f21c3d536','01a2009fe61a7832a193063cb14d24ad','["inference", "management"]',NULL);
INSERT INTO "gateway_apikey" VALUES('01a2009fe67a7b4baf823a3b7b07b0d4','stack','sk-sluice-p61l','b8fA','4b46a6a94066c3995bb96e41bf277880ec15044245c316625693fb509f419201','2026-11-22 00:20:08.954',NULL,NULL,'2026-11-22 00:20:17.601182',NULL,'01a2009fe65d7f8897f709b466b073c0','01a2009fe65a73b6914939f6da6b1f1a','["inference", "management"]',NULL);
INSERT INTO "gateway_apikey" VALUES('01a2009fe6aa7163be10974c27009140','stack','sk-sluice-UaZM','axm0','c648668a7df9524279c42aafbf28fc2c2fda000d27cf44bf74576f4703fafb25','2026-11-22 00:20:09.002',NULL,NULL,'2026-11-22 00:20:17.601182',NULL,'01a2009fe6817f39ae739239028d847e','01a2009fe67e729fa2767beb269c5356','["inference", "management"]',NULL);
INSERT INTO "gateway_apikey" VALUES('01a2009fff37750c87010b98c43c58b2','kept','sk-sluice-2bcz','ec2A','b9f3398c76ffa9762bae7833fc7fca8c95539f9f8707c4e187108c0314536493','2026-11-22 00:20:15.287',NULL,NULL,'2026-11-22 00:20:17.601182',NULL,'01a2009ffc9f7da2a2795fd80c030101','01a2009ffc9e7b86b706fae9c73127cf','["inference", "management"]',NULL);
INSERT INTO "gateway_apikey" VALUES('01a2009fff3e7abfac8bb3169152ab69','revoked','sk-sluice-LVQk','6Xzw','be05ec158e982e1604e77c4c452b082e0118ba86bf096ed87736f3f694e7d956','2026-11-22 00:20:15.294',NULL,'2026-11-22 00:20:15.298',NULL,NULL,'01a2009ffc9f7da2a2795fd80c030101','01a2009ffc9e7b86b706fae9c73127cf','["inference"]',NULL);
CREATE TABLE "gateway_auditevent" ("id" char(32) NOT NULL PRIMARY KEY, "at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "actor" varchar(254) NOT NULL, "action" varchar(60) NOT NULL, "target_type" varchar(40) NOT NULL, "target_id" varchar(64) NOT NULL, "target" varchar(254) NOT NULL, "before" text NOT NULL CHECK ((JSON_VALID("before") OR "before" IS NULL)), "after" text NOT NULL CHECK ((JSON_VALID("after") OR "after" IS NULL)), "address" varchar(45) NOT NULL, "request" char(32) NULL, "api_key_id" char(32) NULL REFERENCES "gateway_apikey" ("id") DEFERRABLE INITIALLY DEFERRED, "tenant_id" char(32) NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" char(32) NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5ae7ed399320924ed170385','2026-11-22 00:20:08.751','seed.py','plan.created','plan','01a2009f-e5ad-796c-9d45-7561af2b77ed','Free','{}','{"slug": "free", "name": "Free", "is_offered": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5b77e0daa14cb5955c2c4ee','2026-11-22 00:20:08.760','seed.py','plan_version.created','planversion','01a2009f-e5b0-7f5f-b520-85b05b5e31ca','Free v1','{}','{"plan": "01a2009f-e5ad-796c-9d45-7561af2b77ed", "number": 1, "request_limit": 30, "request_period_s": 60, "request_burst": 10, "credit_limit": 10000000, "credit_period_s": 60, "credit_burst": 20000000, "concurrency": 4, "weight": 1000, "slice_tokens": 128, "monthly_credits": 100000000, "multiplier_bp": 10000, "overage": "block", "overdraft_limit": 0, "allowed_models": ["smollm2-135m-instruct", "all-minilm-l6-v2"], "default_task": "chat"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5b87bbc997f2d7e9d127d5e','2026-11-22 00:20:08.760','seed.py','plan.created','plan','01a2009f-e5b8-75ad-b61b-e305fd674c40','Business','{}','{"slug": "business", "name": "Business", "is_offered": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5bb79c7bb4f8231aba44316','2026-11-22 00:20:08.763','seed.py','plan_version.created','planversion','01a2009f-e5b9-7a7a-8879-84343aca3966','Business v1','{}','{"plan": "01a2009f-e5b8-75ad-b61b-e305fd674c40", "number": 1, "request_limit": 600, "request_period_s": 60, "request_burst": 1200, "credit_limit": 2000000000, "credit_period_s": 60, "credit_burst": 6000000000, "concurrency": 64, "weight": 4000, "slice_tokens": 256, "monthly_credits": 20000000000, "multiplier_bp": 10000, "overage": "block", "overdraft_limit": 0, "allowed_models": [], "default_task": "chat"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5bc75e2928461b8aa3ea61c','2026-11-22 00:20:08.764','seed.py','plan.created','plan','01a2009f-e5bc-7074-a0d3-d119cec1af33','Max','{}','{"slug": "max", "name": "Max", "is_offered": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5c373aa9f00e639c511ac15','2026-11-22 00:20:08.771','seed.py','plan_version.created','planversion','01a2009f-e5bd-737b-9965-620cf9723a4c','Max v1','{}','{"plan": "01a2009f-e5bc-7074-a0d3-d119cec1af33", "number": 1, "request_limit": 60, "request_period_s": 60, "request_burst": 60, "credit_limit": 20000000000, "credit_period_s": 18000, "credit_burst": 20000000000, "concurrency": 16, "weight": 2000, "slice_tokens": 1024, "monthly_credits": 100000000000, "multiplier_bp": 10000, "overage": "block", "overdraft_limit": 0, "allowed_models": [], "default_task": "chat"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5cf79a1aaf50c0e23c20a4f','2026-11-22 00:20:08.783','seed.py','plan_version.created','planversion','01a2009f-e5cd-79ee-a2d4-9748739a0b1b','Free v2','{}','{"plan": "01a2009f-e5ad-796c-9d45-7561af2b77ed", "number": 2, "request_limit": 1000000, "request_period_s": 60, "request_burst": 1000000, "credit_limit": 1000000000000, "credit_period_s": 60, "credit_burst": 1000000000000, "concurrency": 64, "weight": 1000, "slice_tokens": 128, "monthly_credits": 100000000, "multiplier_bp": 10000, "overage": "block", "overdraft_limit": 0, "allowed_models": [], "default_task": "chat"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5d47758bdad5ab2239708c4','2026-11-22 00:20:08.788','seed.py','plan_version.created','planversion','01a2009f-e5d2-79e6-b532-60d4afbdd0b8','Business v2','{}','{"plan": "01a2009f-e5b8-75ad-b61b-e305fd674c40", "number": 2, "request_limit": 1000000, "request_period_s": 60, "request_burst": 1000000, "credit_limit": 1000000000000, "credit_period_s": 60, "credit_burst": 1000000000000, "concurrency": 64, "weight": 4000, "slice_tokens": 256, "monthly_credits": 20000000000, "multiplier_bp": 10000, "overage": "block", "overdraft_limit": 0, "allowed_models": [], "default_task": "chat"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5dc7df88822c3450a325820','2026-11-22 00:20:08.797','seed.py','plan_version.created','planversion','01a2009f-e5da-7d94-9b20-4d709a0df87a','Max v2','{}','{"plan": "01a2009f-e5bc-7074-a0d3-d119cec1af33", "number": 2, "request_limit": 1000000, "request_period_s": 60, "request_burst": 1000000, "credit_limit": 1000000000000, "credit_period_s": 18000, "credit_burst": 1000000000000, "concurrency": 64, "weight": 2000, "slice_tokens": 1024, "monthly_credits": 100000000000, "multiplier_bp": 10000, "overage": "block", "overdraft_limit": 0, "allowed_models": [], "default_task": "chat"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5e17c9f82c414f5f5e7886b','2026-11-22 00:20:08.801','seed.py','rate_card.created','ratecard','01a2009f-e5e1-740a-a381-7ca62eaa5fc1','fake-chat','{}','{"name": "fake-chat"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5e4793fbf500579438fd3c2','2026-11-22 00:20:08.804','seed.py','prices.published','ratecardversion','01a2009f-e5e0-7d6f-b60f-0e146ab864b7','fake-chat from 2026-11-22 00:20','{}','{"cache_read from 0": 700000, "cache_write_long from 0": 3000000, "cache_write_short from 0": 3000000, "input from 0": 3000000, "output from 0": 11000000, "reasoning from 0": 11000000, "request_fee": 0, "effective_from": "2026-11-22T00:20:08.800Z"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5ef7e06933b42fe03b9abf7','2026-11-22 00:20:08.816','seed.py','model.created','publicmodel','0892a038-e84b-45a9-9c94-38908850d6e8','fake-chat','{}','{"name": "fake-chat", "kinds": ["chat"], "context_length": 8192, "rate_card": "fake-chat", "description": "", "is_active": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5f17c8b8c1a8a663d044175','2026-11-22 00:20:08.817','seed.py','deployment.created','deployment','e5133328-59ef-4c2a-b20d-7b4a87feacd5','fake-chat','{}','{"name": "fake-chat", "model": "0892a038-e84b-45a9-9c94-38908850d6e8", "backend": "worker", "node": "local", "source": "fake", "options": {"architecture": "fake", "kv_tokens": "(not shown)", "options": {"kinds": ["chat"], "step_seconds": 0.001}}, "is_active": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5f67b7daed4ff263137cb12','2026-11-22 00:20:08.822','seed.py','rate_card.created','ratecard','01a2009f-e5f6-75ac-91ff-ef7ecf49458e','fake-embed','{}','{"name": "fake-embed"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5f87d16bb8f47126d9b16a4','2026-11-22 00:20:08.824','seed.py','prices.published','ratecardversion','01a2009f-e5f6-711a-9639-d47d7d613a22','fake-embed from 2026-11-22 00:20','{}','{"cache_read from 0": 1300000, "cache_write_long from 0": 1300000, "cache_write_short from 0": 1300000, "input from 0": 1300000, "output from 0": 0, "reasoning from 0": 0, "request_fee": 0, "effective_from": "2026-11-22T00:20:08.822Z"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe5ff70f0bbac9ae9f251f105','2026-11-22 00:20:08.831','seed.py','model.created','publicmodel','d815f49e-9723-4246-a193-22c406ea4bb7','fake-embed','{}','{"name": "fake-embed", "kinds": ["embedding"], "context_length": 8192, "rate_card": "fake-embed", "description": "", "is_active": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe600775daa914080a97e0d69','2026-11-22 00:20:08.832','seed.py','deployment.created','deployment','1534d10a-f93b-4712-9495-6f403ea31837','fake-embed','{}','{"name": "fake-embed", "model": "d815f49e-9723-4246-a193-22c406ea4bb7", "backend": "worker", "node": "local", "source": "fake", "options": {"architecture": "fake", "kv_tokens": "(not shown)", "options": {"kinds": ["embedding"]}}, "is_active": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe60c77f78c4d219c768c6699','2026-11-22 00:20:08.844','seed.py','route_rule.created','routerule','3164dd8a-09b2-463d-b710-f222ebc84aa8','embeddings','{}','{"name": "embeddings", "priority": 100, "plan": "", "task": "embedding", "min_prompt_tokens": null, "max_prompt_tokens": null, "is_active": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe60e777cbd1491eecc3072dd','2026-11-22 00:20:08.846','seed.py','route_target.created','routetarget','0e29859c-fbda-4bfb-9c5b-863cf133cba7','embeddings → fake-embed','{}','{"rule": "3164dd8a-09b2-463d-b710-f222ebc84aa8", "model": "d815f49e-9723-4246-a193-22c406ea4bb7", "weight": 1}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe60f756ca5c87d770e33ddf4','2026-11-22 00:20:08.847','seed.py','route_rule.created','routerule','367bac72-f73a-41f1-af0b-19bb1bc1c24b','general chat','{}','{"name": "general chat", "priority": 1000, "plan": "", "task": "", "min_prompt_tokens": null, "max_prompt_tokens": null, "is_active": true}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe61077acbb0647590cfa9a76','2026-11-22 00:20:08.848','seed.py','route_target.created','routetarget','9aca24aa-b884-48ca-a0b6-0fa4b4ebedc0','general chat → fake-chat','{}','{"rule": "367bac72-f73a-41f1-af0b-19bb1bc1c24b", "model": "0892a038-e84b-45a9-9c94-38908850d6e8", "weight": 1}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe61b753aa781208b55247b2b','2026-11-22 00:20:08.859','seed.py','tenant.created','tenant','01a2009f-e61a-7832-a193-063cb14d24ad','free','{}','{"name": "free", "slug": "stack-free", "is_active": true}','',NULL,NULL,'01a2009fe61a7832a193063cb14d24ad',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe62a77fdb09f098243ed627f','2026-11-22 00:20:08.874','seed.py','project.created','project','01a2009f-e622-7019-950f-cd9f21c3d536','free · Default','{}','{"name": "Default", "is_active": true}','',NULL,NULL,'01a2009fe61a7832a193063cb14d24ad',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe634736ca9e4ab5ccac79080','2026-11-22 00:20:08.884','seed.py','wallet.created','wallet','01a2009f-e633-749d-8e73-2b525f3f2354','free · main','{}','{"state": "open"}','',NULL,NULL,'01a2009fe61a7832a193063cb14d24ad',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe64276f08f9d30bfb4ca9e04','2026-11-22 00:20:08.898','seed.py','subscription.created','subscription','01a2009f-e641-7428-bec9-88dc0c066389','free: Free v2','{}','{"version": "01a2009f-e5cd-79ee-a2d4-9748739a0b1b", "next_version": null, "state": "active", "time_zone": "UTC"}','',NULL,NULL,'01a2009fe61a7832a193063cb14d24ad',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe658717fb0418489e4b87484','2026-11-22 00:20:08.920','seed.py','key.created','apikey','01a2009f-e657-7161-b8a2-6c8655dc0474','stack (sk-sluice-wnip…m6wo)','{}','{"name": "stack", "project": "01a2009f-e622-7019-950f-cd9f21c3d536", "scopes": ["inference", "management"], "expires_at": null, "parent": null}','',NULL,NULL,'01a2009fe61a7832a193063cb14d24ad',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe65a7aabb696785c0478ecca','2026-11-22 00:20:08.922','seed.py','tenant.created','tenant','01a2009f-e65a-73b6-9149-39f6da6b1f1a','business','{}','{"name": "business", "slug": "stack-business", "is_active": true}','',NULL,NULL,'01a2009fe65a73b6914939f6da6b1f1a',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe662747086df3d8a06fb283b','2026-11-22 00:20:08.930','seed.py','project.created','project','01a2009f-e65d-7f88-97f7-09b466b073c0','business · Default','{}','{"name": "Default", "is_active": true}','',NULL,NULL,'01a2009fe65a73b6914939f6da6b1f1a',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe666777da13c66a14f7e4126','2026-11-22 00:20:08.934','seed.py','wallet.created','wallet','01a2009f-e665-7cf0-8c9e-36fbe18665b5','business · main','{}','{"state": "open"}','',NULL,NULL,'01a2009fe65a73b6914939f6da6b1f1a',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe66d707aae254cfb3c1bfef7','2026-11-22 00:20:08.941','seed.py','subscription.created','subscription','01a2009f-e66c-7435-b1fb-68d2845d6e68','business: Business v2','{}','{"version": "01a2009f-e5d2-79e6-b532-60d4afbdd0b8", "next_version": null, "state": "active", "time_zone": "UTC"}','',NULL,NULL,'01a2009fe65a73b6914939f6da6b1f1a',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe67b74bc9d786a9c08bea6fe','2026-11-22 00:20:08.955','seed.py','key.created','apikey','01a2009f-e67a-7b4b-af82-3a3b7b07b0d4','stack (sk-sluice-p61l…b8fA)','{}','{"name": "stack", "project": "01a2009f-e65d-7f88-97f7-09b466b073c0", "scopes": ["inference", "management"], "expires_at": null, "parent": null}','',NULL,NULL,'01a2009fe65a73b6914939f6da6b1f1a',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe67e78d897277063716f6d74','2026-11-22 00:20:08.958','seed.py','tenant.created','tenant','01a2009f-e67e-729f-a276-7beb269c5356','max','{}','{"name": "max", "slug": "stack-max", "is_active": true}','',NULL,NULL,'01a2009fe67e729fa2767beb269c5356',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe68673c4831368593ab50e45','2026-11-22 00:20:08.966','seed.py','project.created','project','01a2009f-e681-7f39-ae73-9239028d847e','max · Default','{}','{"name": "Default", "is_active": true}','',NULL,NULL,'01a2009fe67e729fa2767beb269c5356',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe68f72aa8de9f3bde59a1536','2026-11-22 00:20:08.975','seed.py','wallet.created','wallet','01a2009f-e68e-788f-a433-181d1ec6d1f8','max · main','{}','{"state": "open"}','',NULL,NULL,'01a2009fe67e729fa2767beb269c5356',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe6947fa283892098d7273523','2026-11-22 00:20:08.981','seed.py','subscription.created','subscription','01a2009f-e694-73c9-995a-0dcfd71395d9','max: Max v2','{}','{"version": "01a2009f-e5da-7d94-9b20-4d709a0df87a", "next_version": null, "state": "active", "time_zone": "UTC"}','',NULL,NULL,'01a2009fe67e729fa2767beb269c5356',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fe6aa7c3ca5566458693697b5','2026-11-22 00:20:09.002','seed.py','key.created','apikey','01a2009f-e6aa-7163-be10-974c27009140','stack (sk-sluice-UaZM…axm0)','{}','{"name": "stack", "project": "01a2009f-e681-7f39-ae73-9239028d847e", "scopes": ["inference", "management"], "expires_at": null, "parent": null}','',NULL,NULL,'01a2009fe67e729fa2767beb269c5356',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffaf3704bb754b6041933a7fe','2026-11-22 00:20:14.195','older.py','rate_card.created','ratecard','01a2009f-faf2-739e-8180-5d549895762e','smollm2-135m-instruct','{}','{"name": "smollm2-135m-instruct"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffaf67897a01f8d655be0dc48','2026-11-22 00:20:14.198','older.py','prices.published','ratecardversion','01a2009f-faed-73ec-9f38-c5b0719e578b','smollm2-135m-instruct from 2026-11-22 00:20','{}','{"cache_read from 0": 1000000, "cache_write_long from 0": 10000000, "cache_write_short from 0": 10000000, "input from 0": 10000000, "output from 0": 40000000, "reasoning from 0": 40000000, "request_fee": 0, "effective_from": "2026-11-22T00:20:14.189Z"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffaf77b8e84b07eb9a8f1e3de','2026-11-22 00:20:14.199','older.py','rate_card.created','ratecard','01a2009f-faf7-75e8-ad76-1f02a406fd93','all-minilm-l6-v2','{}','{"name": "all-minilm-l6-v2"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffaf979748e20c2b3ba327b2e','2026-11-22 00:20:14.201','older.py','prices.published','ratecardversion','01a2009f-faf7-72c6-882f-811ae17cd254','all-minilm-l6-v2 from 2026-11-22 00:20','{}','{"cache_read from 0": 200000, "cache_write_long from 0": 2000000, "cache_write_short from 0": 2000000, "input from 0": 2000000, "output from 0": 0, "reasoning from 0": 0, "request_fee": 0, "effective_from": "2026-11-22T00:20:14.199Z"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffc8974dcbd433c68b2bf98e9','2026-11-22 00:20:14.601','older.py','user.created','user','01a2009f-fb4b-7530-a94f-fc61b9a7b445','operator@example.com','{}','{"email": "operator@example.com", "name": "", "is_active": true, "is_staff": true, "is_superuser": true, "password": "(not shown)"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffc9f7952a6612298633f1ed5','2026-11-22 00:20:14.623','older.py','tenant.created','tenant','01a2009f-fc9e-7b86-b706-fae9c73127cf','Orchard','{}','{"name": "Orchard", "slug": "orchard", "is_active": true}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffca07774963b88f712db9b9a','2026-11-22 00:20:14.624','older.py','project.created','project','01a2009f-fc9f-7da2-a279-5fd80c030101','Orchard · Default','{}','{"name": "Default", "is_active": true}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffca673e2bb4c0a4d8b106e89','2026-11-22 00:20:14.630','older.py','wallet.created','wallet','01a2009f-fca1-74fb-abe9-12e42b66d6e7','Orchard · main','{}','{"state": "open"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffcaf7e3ba826aa8fe0942dc3','2026-11-22 00:20:14.640','older.py','subscription.created','subscription','01a2009f-fcae-7dcf-a974-c76e945a146b','Orchard: Business v2','{}','{"version": "01a2009f-e5d2-79e6-b532-60d4afbdd0b8", "next_version": null, "state": "active", "time_zone": "UTC"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffcdd7cdcaa9788d09fcac043','2026-11-22 00:20:14.689','older.py','invitation.created','invitation','01a2009f-fcdd-7327-bcae-192999f5dd70','owner@example.com → Orchard','{}','{"email": "owner@example.com", "role": "owner", "expires_at": "2026-12-06T00:20:14.685Z"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009ffde5709e80ee259ad0bdd013','2026-11-22 00:20:14.949','older.py','invitation.created','invitation','01a2009f-fde4-7797-a53e-fc6a04d8b391','second@example.com → Orchard','{}','{"email": "second@example.com", "role": "admin", "expires_at": "2026-12-06T00:20:14.948Z"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff1f7d8b83ad1b2b2c908d7d','2026-11-22 00:20:15.264','older.py','user.created','user','01a2009f-fde7-70ca-b097-e40e58b35673','second@example.com','{}','{"email": "second@example.com", "name": "", "is_active": true, "is_staff": false, "is_superuser": false, "password": "(not shown)"}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff22711294898b00f20da914','2026-11-22 00:20:15.266','second@example.com','invitation.accepted','invitation','01a2009f-fde4-7797-a53e-fc6a04d8b391','second@example.com → Orchard','{}','{"role": "admin"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf','01a2009ffde770cab097e40e58b35673');
INSERT INTO "gateway_auditevent" VALUES('01a2009fff237b03843cc4fa7b859fbd','2026-11-22 00:20:15.267','older.py','membership.created','membership','01a2009f-ff22-7d55-aa32-89ec11b1af99','second@example.com in Orchard','{}','{"user": "01a2009f-fde7-70ca-b097-e40e58b35673", "role": "admin", "is_active": true}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff3471ef82b24b487cd53837','2026-11-22 00:20:15.284','older.py','invitation.created','invitation','01a2009f-ff33-79e4-931b-915f474972ec','third@example.com → Orchard','{}','{"email": "third@example.com", "role": "member", "expires_at": "2026-12-06T00:20:15.283Z"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff387443b5a12b790e1e6de4','2026-11-22 00:20:15.288','older.py','key.created','apikey','01a2009f-ff37-750c-8701-0b98c43c58b2','kept (sk-sluice-2bcz…ec2A)','{}','{"name": "kept", "project": "01a2009f-fc9f-7da2-a279-5fd80c030101", "scopes": ["inference", "management"], "expires_at": null, "parent": null}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff3f74399b0ff0d9792915b7','2026-11-22 00:20:15.295','older.py','key.created','apikey','01a2009f-ff3e-7abf-ac8b-b3169152ab69','revoked (sk-sluice-LVQk…6Xzw)','{}','{"name": "revoked", "project": "01a2009f-fc9f-7da2-a279-5fd80c030101", "scopes": ["inference"], "expires_at": null, "parent": null}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff42773b9f02d920daa4ae0b','2026-11-22 00:20:15.298','older.py','key.revoked','apikey','01a2009f-ff3e-7abf-ac8b-b3169152ab69','revoked (sk-sluice-LVQk…6Xzw)','{"revoked": false}','{"revoked": true}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff4d75418eaa97f298a7ce30','2026-11-22 00:20:15.309','older.py','credit.granted','ledgertransfer','5','Grant: 5 credits','{}','{"credits_micro": 5000000, "reason": "welcome", "grant": "01a2009f-ff4b-7d85-9d84-81d40f21832a"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff547b069916deddd6e2c299','2026-11-22 00:20:15.316','older.py','credit.adjusted','ledgertransfer','6','Adjustment: 0.001 credits','{}','{"credits_micro": -1000, "reason": "a correction", "grant": "01a2009f-fcb8-7a9f-ae73-3de02fad0b65"}','',NULL,NULL,'01a2009ffc9e7b86b706fae9c73127cf',NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff6276e0af330cbd04663c7b','2026-11-22 00:20:15.330','older.py','deployment.created','deployment','8f1c67c4-e11f-4a83-830c-a2c4c35e3cbc','fake-chat-gpu1','{"name": null, "model": null, "backend": null, "node": null, "source": null, "options": null, "is_active": null}','{"name": "fake-chat-gpu1", "model": "0892a038-e84b-45a9-9c94-38908850d6e8", "backend": "worker", "node": "gpu1", "source": "fake", "options": {"architecture": "fake", "kv_tokens": "(not shown)", "options": {"kinds": ["chat"], "step_seconds": 0.001}}, "is_active": false}','',NULL,NULL,NULL,NULL);
INSERT INTO "gateway_auditevent" VALUES('01a2009fff667c9a95f4292a4d00231c','2026-11-22 00:20:15.334','older.py','sign_in_link.created','signinlink','01a2009f-ff66-71b9-be4c-95581480a46c','operator@example.com until 2026-11-22 00:35:15.334061+00:00','{}','{"user": "01a2009f-fb4b-7530-a94f-fc61b9a7b445", "expires_at": "2026-11-22T00:35:15.334Z"}','',NULL,NULL,NULL,NULL);
CREATE TABLE "gateway_catalogueepoch" ("id" smallint NOT NULL PRIMARY KEY, "epoch" bigint NOT NULL, "sequence" bigint NOT NULL);
INSERT INTO "gateway_catalogueepoch" VALUES(1,54,20);
CREATE TABLE "gateway_invitation" ("id" char(32) NOT NULL PRIMARY KEY, "email" varchar(254) NOT NULL, "role" varchar(10) NOT NULL, "digest" varchar(64) NOT NULL UNIQUE, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "expires_at" datetime NOT NULL, "accepted_at" datetime NULL, "tenant_id" char(32) NOT NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "gateway_invitation" VALUES('01a2009ffcdd7327bcae192999f5dd70','owner@example.com','owner','3ef123a63d4be97bfbb8c624f3f27daae20a01de1c67c0a3d6abe10606bf0049','2026-11-22 00:20:14.685186','2026-12-06 00:20:14.685187',NULL,'01a2009ffc9e7b86b706fae9c73127cf');
INSERT INTO "gateway_invitation" VALUES('01a2009ffde47797a53efc6a04d8b391','second@example.com','admin','e0077e581872000db7a8e57bdec79a8567461692a844c37f2caaa3779f6b3ed7','2026-11-22 00:20:14.948462','2026-12-06 00:20:14.948464','2026-11-22 00:20:15.265786','01a2009ffc9e7b86b706fae9c73127cf');
INSERT INTO "gateway_invitation" VALUES('01a2009fff3379e4931b915f474972ec','third@example.com','member','6c7da7ed27284cc2f1cf71386fd75b3064b728c615f75585752d17116de0f977','2026-11-22 00:20:15.283607','2026-12-06 00:20:15.283609',NULL,'01a2009ffc9e7b86b706fae9c73127cf');
CREATE TABLE "gateway_membership" ("id" char(32) NOT NULL PRIMARY KEY, "role" varchar(10) NOT NULL, "is_active" bool NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "user_id" char(32) NOT NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED, "tenant_id" char(32) NOT NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "membership_once_per_tenant_and_user" UNIQUE ("tenant_id", "user_id"));
INSERT INTO "gateway_membership" VALUES('01a2009fff227d55aa3289ec11b1af99','admin',1,'2026-11-22 00:20:15.267','01a2009ffde770cab097e40e58b35673','01a2009ffc9e7b86b706fae9c73127cf');
CREATE TABLE "gateway_project" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(120) NOT NULL, "is_active" bool NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "tenant_id" char(32) NOT NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "project_once_per_tenant_and_name" UNIQUE ("tenant_id", "name"));
INSERT INTO "gateway_project" VALUES('01a2009fe6227019950fcd9f21c3d536','Default',1,'2026-11-22 00:20:08.866','01a2009fe61a7832a193063cb14d24ad');
INSERT INTO "gateway_project" VALUES('01a2009fe65d7f8897f709b466b073c0','Default',1,'2026-11-22 00:20:08.926','01a2009fe65a73b6914939f6da6b1f1a');
INSERT INTO "gateway_project" VALUES('01a2009fe6817f39ae739239028d847e','Default',1,'2026-11-22 00:20:08.962','01a2009fe67e729fa2767beb269c5356');
INSERT INTO "gateway_project" VALUES('01a2009ffc9f7da2a2795fd80c030101','Default',1,'2026-11-22 00:20:14.624','01a2009ffc9e7b86b706fae9c73127cf');
CREATE TABLE "gateway_refusalcount" ("id" char(32) NOT NULL PRIMARY KEY, "minute" datetime NOT NULL, "status" smallint unsigned NOT NULL CHECK ("status" >= 0), "code" varchar(60) NOT NULL, "model" varchar(120) NOT NULL, "count" bigint unsigned NOT NULL CHECK ("count" >= 0), "last_request" char(32) NOT NULL, "last_at" datetime NOT NULL, "api_key_id" char(32) NULL REFERENCES "gateway_apikey" ("id") DEFERRABLE INITIALLY DEFERRED, "tenant_id" char(32) NOT NULL REFERENCES "gateway_tenant" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "gateway_refusalcount" VALUES('8b0afc6953805c7a9034aab9c5fa1668','2026-11-22 00:20:00',401,'api_key_revoked','',1,'01a200a000d576b79b99c18602671495','2026-11-22 00:20:15.709879','01a2009fff3e7abfac8bb3169152ab69','01a2009ffc9e7b86b706fae9c73127cf');
CREATE TABLE "gateway_signinlink" ("id" char(32) NOT NULL PRIMARY KEY, "digest" varchar(64) NOT NULL UNIQUE, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "expires_at" datetime NOT NULL, "used_at" datetime NULL, "user_id" char(32) NOT NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "gateway_signinlink" VALUES('01a2009fff6671b9be4c95581480a46c','96397cd7b3626f113f1425bc7043188f58806061e3fd39a02222a12fbaf18182','2026-11-22 00:20:15.334','2026-11-22 00:35:15.334061',NULL,'01a2009ffb4b7530a94ffc61b9a7b445');
CREATE TABLE "gateway_tenant" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(120) NOT NULL, "slug" varchar(60) NOT NULL UNIQUE, "is_active" bool NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL);
INSERT INTO "gateway_tenant" VALUES('01a2009fe61a7832a193063cb14d24ad','free','stack-free',1,'2026-11-22 00:20:08.858');
INSERT INTO "gateway_tenant" VALUES('01a2009fe65a73b6914939f6da6b1f1a','business','stack-business',1,'2026-11-22 00:20:08.922');
INSERT INTO "gateway_tenant" VALUES('01a2009fe67e729fa2767beb269c5356','max','stack-max',1,'2026-11-22 00:20:08.958');
INSERT INTO "gateway_tenant" VALUES('01a2009ffc9e7b86b706fae9c73127cf','Orchard','orchard',1,'2026-11-22 00:20:14.623');
CREATE TABLE "gateway_tenantepoch" ("tenant" char(32) NOT NULL PRIMARY KEY, "sequence" bigint NOT NULL);
INSERT INTO "gateway_tenantepoch" VALUES('01a2009fe61a7832a193063cb14d24ad',4);
INSERT INTO "gateway_tenantepoch" VALUES('01a2009fe65a73b6914939f6da6b1f1a',8);
INSERT INTO "gateway_tenantepoch" VALUES('01a2009fe67e729fa2767beb269c5356',12);
INSERT INTO "gateway_tenantepoch" VALUES('01a2009ffc9e7b86b706fae9c73127cf',20);
CREATE TABLE "gateway_user" ("password" varchar(128) NOT NULL, "last_login" datetime NULL, "is_superuser" bool NOT NULL, "id" char(32) NOT NULL PRIMARY KEY, "email" varchar(254) NOT NULL UNIQUE, "name" varchar(120) NOT NULL, "is_active" bool NOT NULL, "is_staff" bool NOT NULL, "date_joined" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL);
INSERT INTO "gateway_user" VALUES('pbkdf2_sha256$1000000$1Su3eKYpJ5aCUY5yvaAbIO$1it0O6oQuXDm13x0q7F0tClGzhT3CMHqg8qOwG56m9E=',NULL,1,'01a2009ffb4b7530a94ffc61b9a7b445','operator@example.com','',1,1,'2026-11-22 00:20:14.600');
INSERT INTO "gateway_user" VALUES('pbkdf2_sha256$1000000$PSWQpiRmZEPyhh81mJorQy$DD9NPlWNCujIpXiES3NDaNBw8i0Vk4lt/M0xSWLnUoc=',NULL,0,'01a2009ffde770cab097e40e58b35673','second@example.com','',1,0,'2026-11-22 00:20:15.261');
CREATE TABLE "gateway_user_groups" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" char(32) NOT NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "gateway_user_user_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" char(32) NOT NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "mfa_authenticator" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "type" varchar(20) NOT NULL, "data" text NOT NULL CHECK ((JSON_VALID("data") OR "data" IS NULL)), "user_id" char(32) NOT NULL REFERENCES "gateway_user" ("id") DEFERRABLE INITIALLY DEFERRED, "created_at" datetime NOT NULL, "last_used_at" datetime NULL);
CREATE TABLE "routing_deployment" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(80) NOT NULL UNIQUE, "backend" varchar(20) NOT NULL, "node" varchar(80) NOT NULL, "source" varchar(500) NOT NULL, "options" text NOT NULL CHECK ((JSON_VALID("options") OR "options" IS NULL)), "is_active" bool NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "model_id" char(32) NOT NULL REFERENCES "routing_publicmodel" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "routing_deployment" VALUES('e513332859ef4c2ab20d7b4a87feacd5','fake-chat','worker','local','fake','{"architecture": "fake", "kv_tokens": 16384, "options": {"kinds": ["chat"], "step_seconds": 0.001}}',1,'2026-11-22 00:20:08.817','0892a038e84b45a99c9438908850d6e8');
INSERT INTO "routing_deployment" VALUES('1534d10af93b471294956f403ea31837','fake-embed','worker','local','fake','{"architecture": "fake", "kv_tokens": 16384, "options": {"kinds": ["embedding"]}}',1,'2026-11-22 00:20:08.832','d815f49e97234246a19322c406ea4bb7');
INSERT INTO "routing_deployment" VALUES('8f1c67c4e11f4a83830ca2c4c35e3cbc','fake-chat-gpu1','worker','gpu1','fake','{"architecture": "fake", "kv_tokens": 16384, "options": {"kinds": ["chat"], "step_seconds": 0.001}}',0,'2026-11-22 00:20:08.817000','0892a038e84b45a99c9438908850d6e8');
CREATE TABLE "routing_publicmodel" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(120) NOT NULL UNIQUE, "kinds" text NOT NULL CHECK ((JSON_VALID("kinds") OR "kinds" IS NULL)), "context_length" integer unsigned NOT NULL CHECK ("context_length" >= 0), "rate_card" varchar(100) NOT NULL, "description" varchar(300) NOT NULL, "is_active" bool NOT NULL, "created_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL);
INSERT INTO "routing_publicmodel" VALUES('0892a038e84b45a99c9438908850d6e8','fake-chat','["chat"]',8192,'fake-chat','',1,'2026-11-22 00:20:08.815');
INSERT INTO "routing_publicmodel" VALUES('d815f49e97234246a19322c406ea4bb7','fake-embed','["embedding"]',8192,'fake-embed','',1,'2026-11-22 00:20:08.830');
CREATE TABLE "routing_routerule" ("id" char(32) NOT NULL PRIMARY KEY, "name" varchar(80) NOT NULL UNIQUE, "priority" integer NOT NULL, "plan" varchar(40) NOT NULL, "task" varchar(40) NOT NULL, "min_prompt_tokens" integer unsigned NULL CHECK ("min_prompt_tokens" >= 0), "max_prompt_tokens" integer unsigned NULL CHECK ("max_prompt_tokens" >= 0), "is_active" bool NOT NULL);
INSERT INTO "routing_routerule" VALUES('3164dd8a09b2463db710f222ebc84aa8','embeddings',100,'','embedding',NULL,NULL,1);
INSERT INTO "routing_routerule" VALUES('367bac72f73a41f1af0b19bb1bc1c24b','general chat',1000,'','',NULL,NULL,1);
CREATE TABLE "routing_routetarget" ("id" char(32) NOT NULL PRIMARY KEY, "weight" integer unsigned NOT NULL CHECK ("weight" >= 0), "model_id" char(32) NOT NULL REFERENCES "routing_publicmodel" ("id") DEFERRABLE INITIALLY DEFERRED, "rule_id" char(32) NOT NULL REFERENCES "routing_routerule" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "route_target_once_per_model" UNIQUE ("rule_id", "model_id"), CONSTRAINT "route_target_weight_positive" CHECK ("weight" > 0));
INSERT INTO "routing_routetarget" VALUES('0e29859cfbda4bfb9c5b863cf133cba7',1,'d815f49e97234246a19322c406ea4bb7','3164dd8a09b2463db710f222ebc84aa8');
INSERT INTO "routing_routetarget" VALUES('9aca24aab88448caa0b60fa4b4ebedc0',1,'0892a038e84b45a99c9438908850d6e8','367bac72f73a41f1af0b19bb1bc1c24b');
CREATE UNIQUE INDEX "django_content_type_app_label_model_76bd3d3b_uniq" ON "django_content_type" ("app_label", "model");
CREATE UNIQUE INDEX "auth_group_permissions_group_id_permission_id_0cd325b0_uniq" ON "auth_group_permissions" ("group_id", "permission_id");
CREATE INDEX "auth_group_permissions_group_id_b120cbf9" ON "auth_group_permissions" ("group_id");
CREATE INDEX "auth_group_permissions_permission_id_84c5c92e" ON "auth_group_permissions" ("permission_id");
CREATE UNIQUE INDEX "auth_permission_content_type_id_codename_01ab375a_uniq" ON "auth_permission" ("content_type_id", "codename");
CREATE INDEX "auth_permission_content_type_id_2f476e4b" ON "auth_permission" ("content_type_id");
CREATE UNIQUE INDEX "user_email_case_insensitive" ON "gateway_user" ((LOWER("email")));
CREATE UNIQUE INDEX "gateway_user_groups_user_id_group_id_7e9b40a3_uniq" ON "gateway_user_groups" ("user_id", "group_id");
CREATE INDEX "gateway_user_groups_user_id_77cfe5e8" ON "gateway_user_groups" ("user_id");
CREATE INDEX "gateway_user_groups_group_id_4d1f9f97" ON "gateway_user_groups" ("group_id");
CREATE UNIQUE INDEX "gateway_user_user_permissions_user_id_permission_id_c1ce8e21_uniq" ON "gateway_user_user_permissions" ("user_id", "permission_id");
CREATE INDEX "gateway_user_user_permissions_user_id_a5e4ae40" ON "gateway_user_user_permissions" ("user_id");
CREATE INDEX "gateway_user_user_permissions_permission_id_8847817b" ON "gateway_user_user_permissions" ("permission_id");
CREATE INDEX "gateway_signinlink_user_id_db4dd6e4" ON "gateway_signinlink" ("user_id");
CREATE INDEX "gateway_invitation_tenant_id_07a318e1" ON "gateway_invitation" ("tenant_id");
CREATE INDEX "gateway_project_tenant_id_d49a066c" ON "gateway_project" ("tenant_id");
CREATE INDEX "gateway_membership_user_id_4e74e432" ON "gateway_membership" ("user_id");
CREATE INDEX "gateway_membership_tenant_id_e26734bf" ON "gateway_membership" ("tenant_id");
CREATE INDEX "account_emailconfirmation_email_address_id_5b7f8c58" ON "account_emailconfirmation" ("email_address_id");
CREATE UNIQUE INDEX "account_emailaddress_user_id_email_987c8728_uniq" ON "account_emailaddress" ("user_id", "email");
CREATE UNIQUE INDEX "unique_verified_email" ON "account_emailaddress" ("email") WHERE "verified";
CREATE INDEX "account_emailaddress_user_id_2c513194" ON "account_emailaddress" ("user_id");
CREATE INDEX "account_emailaddress_email_03be32b2" ON "account_emailaddress" ("email");
CREATE UNIQUE INDEX "unique_primary_email" ON "account_emailaddress" ("user_id", "primary") WHERE "primary";
CREATE INDEX "django_admin_log_content_type_id_c4bce8eb" ON "django_admin_log" ("content_type_id");
CREATE INDEX "django_admin_log_user_id_c564eba6" ON "django_admin_log" ("user_id");
CREATE INDEX "outbox_event_topic" ON "billing_outboxevent" ("topic", "id");
CREATE INDEX "billing_subscription_granted_until_3633a686" ON "billing_subscription" ("granted_until");
CREATE INDEX "billing_subscription_next_version_id_f0eaf7b7" ON "billing_subscription" ("next_version_id");
CREATE INDEX "billing_subscription_tenant_id_9a633004" ON "billing_subscription" ("tenant_id");
CREATE INDEX "billing_subscription_version_id_828231a0" ON "billing_subscription" ("version_id");
CREATE UNIQUE INDEX "usage_rollup_once" ON "billing_usagerollup" ("hour", "tenant", "project", "api_key", "model") WHERE "api_key" IS NOT NULL;
CREATE UNIQUE INDEX "usage_rollup_once_without_key" ON "billing_usagerollup" ("hour", "tenant", "project", "model") WHERE "api_key" IS NULL;
CREATE INDEX "usage_rollup_tenant_hour" ON "billing_usagerollup" ("tenant", "hour");
CREATE UNIQUE INDEX "ledger_transfer_once_per_key" ON "billing_ledgertransfer" ("key") WHERE "key" IS NOT NULL;
CREATE INDEX "ledger_transfer_debit_booked" ON "billing_ledgertransfer" ("debit_id", "booked_at");
CREATE INDEX "ledger_transfer_credit_booked" ON "billing_ledgertransfer" ("credit_id", "booked_at");
CREATE INDEX "billing_planversion_plan_id_177980c8" ON "billing_planversion" ("plan_id");
CREATE INDEX "billing_ratecardversion_card_id_86daed56" ON "billing_ratecardversion" ("card_id");
CREATE INDEX "billing_rate_version_id_e36d7a6f" ON "billing_rate" ("version_id");
CREATE UNIQUE INDEX "subscription_one_active_per_tenant" ON "billing_subscription" ("tenant_id") WHERE "state" = 'active';
CREATE INDEX "billing_wallet_tenant_id_7fee158c" ON "billing_wallet" ("tenant_id");
CREATE UNIQUE INDEX "ledger_account_once_per_kind" ON "billing_ledgeraccount" ("kind") WHERE "wallet_id" IS NULL;
CREATE INDEX "billing_ledgeraccount_wallet_id_f2b4e2c9" ON "billing_ledgeraccount" ("wallet_id");
CREATE INDEX "hold_lease_until" ON "billing_hold" ("lease_until");
CREATE INDEX "hold_wallet" ON "billing_hold" ("wallet_id");
CREATE INDEX "billing_creditgrant_wallet_id_0ebad825" ON "billing_creditgrant" ("wallet_id");
CREATE INDEX "credit_grant_burn_order" ON "billing_creditgrant" ("wallet_id", "priority", "expires_at") WHERE "remaining" > 0;
CREATE INDEX "usage_record_tenant_day" ON "billing_usagerecord" ("tenant", "day", "request");
CREATE INDEX "usage_record_key_day" ON "billing_usagerecord" ("api_key", "day", "request");
CREATE INDEX "usage_record_estimated" ON "billing_usagerecord" ("day", "request") WHERE NOT "exact";
CREATE INDEX "gateway_apikey_created_by_id_ef1fd191" ON "gateway_apikey" ("created_by_id");
CREATE INDEX "gateway_apikey_project_id_23c94ac4" ON "gateway_apikey" ("project_id");
CREATE INDEX "gateway_apikey_tenant_id_17b48e01" ON "gateway_apikey" ("tenant_id");
CREATE INDEX "gateway_apikey_parent_id_8f40e905" ON "gateway_apikey" ("parent_id");
CREATE INDEX "gateway_tenantepoch_sequence_4176051c" ON "gateway_tenantepoch" ("sequence");
CREATE INDEX "gateway_auditevent_at_a25b2724" ON "gateway_auditevent" ("at");
CREATE INDEX "gateway_auditevent_api_key_id_170b1b9c" ON "gateway_auditevent" ("api_key_id");
CREATE INDEX "gateway_auditevent_tenant_id_d36920b4" ON "gateway_auditevent" ("tenant_id");
CREATE INDEX "gateway_auditevent_user_id_66d0dad6" ON "gateway_auditevent" ("user_id");
CREATE INDEX "audit_by_tenant" ON "gateway_auditevent" ("tenant_id", "id" DESC);
CREATE INDEX "audit_by_action" ON "gateway_auditevent" ("action", "id" DESC);
CREATE INDEX "audit_by_user" ON "gateway_auditevent" ("user_id", "id" DESC);
CREATE INDEX "gateway_refusalcount_api_key_id_437ff251" ON "gateway_refusalcount" ("api_key_id");
CREATE INDEX "gateway_refusalcount_tenant_id_5af9532e" ON "gateway_refusalcount" ("tenant_id");
CREATE INDEX "refusals_by_minute" ON "gateway_refusalcount" ("minute" DESC, "last_request" DESC);
CREATE INDEX "refusals_by_tenant" ON "gateway_refusalcount" ("tenant_id", "minute" DESC);
CREATE INDEX "refusals_by_request" ON "gateway_refusalcount" ("last_request");
CREATE INDEX "mfa_authenticator_user_id_0c3a50c0" ON "mfa_authenticator" ("user_id");
CREATE UNIQUE INDEX "unique_authenticator_type" ON "mfa_authenticator" ("user_id", "type") WHERE "type" IN ('totp', 'recovery_codes');
CREATE INDEX "routing_routerule_plan_f62b6714" ON "routing_routerule" ("plan");
CREATE INDEX "routing_deployment_model_id_45b9d127" ON "routing_deployment" ("model_id");
CREATE INDEX "routing_routetarget_model_id_8cc9e501" ON "routing_routetarget" ("model_id");
CREATE INDEX "routing_routetarget_rule_id_9498410d" ON "routing_routetarget" ("rule_id");
CREATE INDEX "django_session_expire_date_a5c62663" ON "django_session" ("expire_date");
CREATE TRIGGER epoch_gateway_apikey_insert_ca4ca574 AFTER insert ON "gateway_apikey" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_apikey_update_be78083c AFTER update ON "gateway_apikey" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."tenant_id" IS NOT NEW."tenant_id" OR OLD."project_id" IS NOT NEW."project_id" OR OLD."name" IS NOT NEW."name" OR OLD."prefix" IS NOT NEW."prefix" OR OLD."last_four" IS NOT NEW."last_four" OR OLD."digest" IS NOT NEW."digest" OR OLD."scopes" IS NOT NEW."scopes" OR OLD."parent_id" IS NOT NEW."parent_id" OR OLD."created_by_id" IS NOT NEW."created_by_id" OR OLD."created_at" IS NOT NEW."created_at" OR OLD."expires_at" IS NOT NEW."expires_at" OR OLD."revoked_at" IS NOT NEW."revoked_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_apikey_delete_cd48230b AFTER delete ON "gateway_apikey" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_membership_insert_d1fadd04 AFTER insert ON "gateway_membership" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_membership_update_f825523a AFTER update ON "gateway_membership" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."tenant_id" IS NOT NEW."tenant_id" OR OLD."user_id" IS NOT NEW."user_id" OR OLD."role" IS NOT NEW."role" OR OLD."is_active" IS NOT NEW."is_active" OR OLD."created_at" IS NOT NEW."created_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_membership_delete_859cc36f AFTER delete ON "gateway_membership" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_tenant_insert_b979f1a9 AFTER insert ON "gateway_tenant" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_tenant_update_97619da2 AFTER update ON "gateway_tenant" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."name" IS NOT NEW."name" OR OLD."slug" IS NOT NEW."slug" OR OLD."is_active" IS NOT NEW."is_active" OR OLD."created_at" IS NOT NEW."created_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."id", sequence FROM gateway_catalogueepoch WHERE id = 1;

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_tenant_delete_43f67098 AFTER delete ON "gateway_tenant" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_project_insert_52050770 AFTER insert ON "gateway_project" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_project_update_3a8a33cb AFTER update ON "gateway_project" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."tenant_id" IS NOT NEW."tenant_id" OR OLD."name" IS NOT NEW."name" OR OLD."is_active" IS NOT NEW."is_active" OR OLD."created_at" IS NOT NEW."created_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_project_delete_7aa24df8 AFTER delete ON "gateway_project" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_subscription_insert_445ca43b AFTER insert ON "billing_subscription" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_subscription_update_8c37feb6 AFTER update ON "billing_subscription" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."tenant_id" IS NOT NEW."tenant_id" OR OLD."version_id" IS NOT NEW."version_id" OR OLD."next_version_id" IS NOT NEW."next_version_id" OR OLD."state" IS NOT NEW."state" OR OLD."anchor" IS NOT NEW."anchor" OR OLD."time_zone" IS NOT NEW."time_zone" OR OLD."created_at" IS NOT NEW."created_at" OR OLD."ended_at" IS NOT NEW."ended_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = NEW."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT NEW."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_subscription_delete_9b4f96e4 AFTER delete ON "billing_subscription" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = OLD."tenant_id";
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT OLD."tenant_id", sequence FROM gateway_catalogueepoch WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_user_update_d1f0a81a AFTER update ON "gateway_user" FOR EACH ROW WHEN OLD."is_active" IS NOT NEW."is_active" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_gateway_user_delete_5941f92a AFTER delete ON "gateway_user" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_plan_insert_97d50235 AFTER insert ON "billing_plan" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_plan_update_34dd47cb AFTER update ON "billing_plan" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."slug" IS NOT NEW."slug" OR OLD."name" IS NOT NEW."name" OR OLD."is_offered" IS NOT NEW."is_offered" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_plan_delete_d172ad2e AFTER delete ON "billing_plan" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_planversion_insert_77f772b4 AFTER insert ON "billing_planversion" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_planversion_update_9e139463 AFTER update ON "billing_planversion" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."plan_id" IS NOT NEW."plan_id" OR OLD."number" IS NOT NEW."number" OR OLD."request_limit" IS NOT NEW."request_limit" OR OLD."request_period_s" IS NOT NEW."request_period_s" OR OLD."request_burst" IS NOT NEW."request_burst" OR OLD."credit_limit" IS NOT NEW."credit_limit" OR OLD."credit_period_s" IS NOT NEW."credit_period_s" OR OLD."credit_burst" IS NOT NEW."credit_burst" OR OLD."concurrency" IS NOT NEW."concurrency" OR OLD."weight" IS NOT NEW."weight" OR OLD."slice_tokens" IS NOT NEW."slice_tokens" OR OLD."monthly_credits" IS NOT NEW."monthly_credits" OR OLD."multiplier_bp" IS NOT NEW."multiplier_bp" OR OLD."overage" IS NOT NEW."overage" OR OLD."overdraft_limit" IS NOT NEW."overdraft_limit" OR OLD."allowed_models" IS NOT NEW."allowed_models" OR OLD."default_task" IS NOT NEW."default_task" OR OLD."created_at" IS NOT NEW."created_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_planversion_delete_1f6a2b09 AFTER delete ON "billing_planversion" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_ratecard_insert_b15e1d5d AFTER insert ON "billing_ratecard" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_ratecard_update_90d3093d AFTER update ON "billing_ratecard" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."name" IS NOT NEW."name" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_ratecard_delete_64061d8c AFTER delete ON "billing_ratecard" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_ratecardversion_insert_5fe8206d AFTER insert ON "billing_ratecardversion" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_ratecardversion_update_c98d4059 AFTER update ON "billing_ratecardversion" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."card_id" IS NOT NEW."card_id" OR OLD."effective_from" IS NOT NEW."effective_from" OR OLD."published_at" IS NOT NEW."published_at" OR OLD."request_fee" IS NOT NEW."request_fee" OR OLD."note" IS NOT NEW."note" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_ratecardversion_delete_60062a17 AFTER delete ON "billing_ratecardversion" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_rate_insert_522efb60 AFTER insert ON "billing_rate" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_rate_update_de241218 AFTER update ON "billing_rate" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."version_id" IS NOT NEW."version_id" OR OLD."tier_min_context" IS NOT NEW."tier_min_context" OR OLD."usage_class" IS NOT NEW."usage_class" OR OLD."rate" IS NOT NEW."rate" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_billing_rate_delete_5ffa3f1d AFTER delete ON "billing_rate" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_publicmodel_insert_6259f906 AFTER insert ON "routing_publicmodel" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_publicmodel_update_8e6638ab AFTER update ON "routing_publicmodel" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."name" IS NOT NEW."name" OR OLD."kinds" IS NOT NEW."kinds" OR OLD."context_length" IS NOT NEW."context_length" OR OLD."rate_card" IS NOT NEW."rate_card" OR OLD."description" IS NOT NEW."description" OR OLD."is_active" IS NOT NEW."is_active" OR OLD."created_at" IS NOT NEW."created_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_publicmodel_delete_ee8f22b8 AFTER delete ON "routing_publicmodel" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_deployment_insert_27e8b401 AFTER insert ON "routing_deployment" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_deployment_update_346e275a AFTER update ON "routing_deployment" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."name" IS NOT NEW."name" OR OLD."model_id" IS NOT NEW."model_id" OR OLD."backend" IS NOT NEW."backend" OR OLD."node" IS NOT NEW."node" OR OLD."source" IS NOT NEW."source" OR OLD."options" IS NOT NEW."options" OR OLD."is_active" IS NOT NEW."is_active" OR OLD."created_at" IS NOT NEW."created_at" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_deployment_delete_5e02f4b7 AFTER delete ON "routing_deployment" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_routerule_insert_79661096 AFTER insert ON "routing_routerule" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_routerule_update_be5ae4e8 AFTER update ON "routing_routerule" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."name" IS NOT NEW."name" OR OLD."priority" IS NOT NEW."priority" OR OLD."plan" IS NOT NEW."plan" OR OLD."task" IS NOT NEW."task" OR OLD."min_prompt_tokens" IS NOT NEW."min_prompt_tokens" OR OLD."max_prompt_tokens" IS NOT NEW."max_prompt_tokens" OR OLD."is_active" IS NOT NEW."is_active" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_routerule_delete_2a5802a7 AFTER delete ON "routing_routerule" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_routetarget_insert_c918d4fa AFTER insert ON "routing_routetarget" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_routetarget_update_785c54a7 AFTER update ON "routing_routetarget" FOR EACH ROW WHEN OLD."id" IS NOT NEW."id" OR OLD."rule_id" IS NOT NEW."rule_id" OR OLD."model_id" IS NOT NEW."model_id" OR OLD."weight" IS NOT NEW."weight" BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER epoch_routing_routetarget_delete_8d17c402 AFTER delete ON "routing_routetarget" FOR EACH ROW  BEGIN 
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);

    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
 END;
CREATE TRIGGER guard_billing_ledgertransfer_update_675a03b1 BEFORE UPDATE ON "billing_ledgertransfer" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'ledger transfers are append-only'); END;
CREATE TRIGGER guard_billing_ledgertransfer_delete_ce11fabd BEFORE DELETE ON "billing_ledgertransfer" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'ledger transfers are append-only'); END;
CREATE TRIGGER guard_billing_usagerecord_update_39e27722 BEFORE UPDATE ON "billing_usagerecord" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'usage records are append-only'); END;
CREATE TRIGGER guard_billing_usagerecord_delete_462146a6 BEFORE DELETE ON "billing_usagerecord" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'usage records are append-only'); END;
CREATE TRIGGER guard_billing_planversion_update_5dc8834b BEFORE UPDATE ON "billing_planversion" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'plan versions are append-only'); END;
CREATE TRIGGER guard_billing_planversion_delete_a7a853bc BEFORE DELETE ON "billing_planversion" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'plan versions are append-only'); END;
CREATE TRIGGER guard_billing_ratecardversion_update_57e39d2a BEFORE UPDATE ON "billing_ratecardversion" FOR EACH ROW WHEN OLD.published_at IS NOT NULL BEGIN SELECT RAISE(ABORT, 'published rate card versions are final'); END;
CREATE TRIGGER guard_billing_ratecardversion_delete_04964492 BEFORE DELETE ON "billing_ratecardversion" FOR EACH ROW WHEN OLD.published_at IS NOT NULL BEGIN SELECT RAISE(ABORT, 'published rate card versions are final'); END;
CREATE TRIGGER guard_billing_rate_insert_dcea56ee BEFORE INSERT ON "billing_rate" FOR EACH ROW WHEN EXISTS (SELECT 1 FROM billing_ratecardversion v WHERE v.id IN (NEW.version_id) AND v.published_at IS NOT NULL) BEGIN SELECT RAISE(ABORT, 'rates of a published version are final'); END;
CREATE TRIGGER guard_billing_rate_update_75a0ad1d BEFORE UPDATE ON "billing_rate" FOR EACH ROW WHEN EXISTS (SELECT 1 FROM billing_ratecardversion v WHERE v.id IN (OLD.version_id, NEW.version_id) AND v.published_at IS NOT NULL) BEGIN SELECT RAISE(ABORT, 'rates of a published version are final'); END;
CREATE TRIGGER guard_billing_rate_delete_dbc56fd3 BEFORE DELETE ON "billing_rate" FOR EACH ROW WHEN EXISTS (SELECT 1 FROM billing_ratecardversion v WHERE v.id IN (OLD.version_id) AND v.published_at IS NOT NULL) BEGIN SELECT RAISE(ABORT, 'rates of a published version are final'); END;
CREATE TRIGGER guard_gateway_auditevent_update_ded70606 BEFORE UPDATE ON "gateway_auditevent" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
CREATE TRIGGER guard_gateway_auditevent_delete_f75b29e4 BEFORE DELETE ON "gateway_auditevent" FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('django_migrations',42);
INSERT INTO "sqlite_sequence" VALUES('django_content_type',37);
INSERT INTO "sqlite_sequence" VALUES('auth_permission',148);
INSERT INTO "sqlite_sequence" VALUES('auth_group',4);
INSERT INTO "sqlite_sequence" VALUES('account_emailaddress',2);
INSERT INTO "sqlite_sequence" VALUES('django_admin_log',0);
INSERT INTO "sqlite_sequence" VALUES('mfa_authenticator',0);
INSERT INTO "sqlite_sequence" VALUES('billing_ledgertransfer',48);
INSERT INTO "sqlite_sequence" VALUES('auth_group_permissions',214);
INSERT INTO "sqlite_sequence" VALUES('billing_outboxevent',40);
COMMIT;
